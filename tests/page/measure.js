// What tests/page/test_states.py measures in the page.
// Where each part lies [CSS pixels], by its name.
const boxes = () => Object.fromEntries([...document.querySelectorAll(
    "#stop, #controls, button, select, .pad, input, main > section, #strip, figure, #word, #why, #hint, canvas")]
  .filter(each => each.getClientRects().length && !each.closest("#align")).map((each, index) => {
    const {x, y, width, height} = each.getBoundingClientRect();
    return [each.id || each.dataset.label || each.dataset.hold || each.dataset.x || each.dataset.curve || `${each.tagName} ${index}`,
            [x, y + scrollY, width, height].map(value => Math.round(value * 10) / 10)];
  }));

// Words that do not fit where they stand, parts that lie over others, and whatever is beyond the window's width.
const cut = () => {
  const cut = [];
  for (const each of document.querySelectorAll("button, #word, h1, h3, .pad b, figcaption, option:checked, label")) {
    if (!each.checkVisibility({visibilityProperty: true}) || each.closest("#align")) continue;
    if (each.scrollWidth > each.clientWidth + 1 && each.clientWidth) cut.push([each.id || each.textContent, each.scrollWidth, each.clientWidth]);
  }
  const parts = [...document.querySelectorAll("main > section, #strip")].filter(a => a.checkVisibility());
  for (const one of parts) {
    const a = one.getBoundingClientRect();
    if (one.id !== "strip" && one.scrollHeight > one.clientHeight + 1) cut.push([one.id, "high", one.scrollHeight, one.clientHeight]);
    if (a.right > innerWidth + 1) cut.push([one.id, "beyond", a.right]);
    for (const other of parts) {
      const b = other.getBoundingClientRect();
      if (one.id < other.id && a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1) cut.push([one.id, other.id]);
    }
  }
  const select = document.querySelector("#mode"), pen = document.createElement("canvas").getContext("2d");
  pen.font = getComputedStyle(select).font;
  for (const {text} of select.options) {
    if (pen.measureText(text).width + 30 > select.clientWidth) cut.push(["mode", text, select.clientWidth]);
  }
  for (const each of document.querySelectorAll("button, .pad, .keyhelp")) {  // whole, with nothing over its edges
    const {left, right, top, bottom} = each.getBoundingClientRect();
    if (!each.checkVisibility({visibilityProperty: true}) || each.closest("#align") || bottom > innerHeight || top < 0) continue;
    for (const [x, y] of [[(left + right) / 2, top + 3], [(left + right) / 2, bottom - 3], [left + 9, (top + bottom) / 2], [right - 9, (top + bottom) / 2]]) {
      const hit = document.elementFromPoint(x, y);
      if (hit !== each && !each.contains(hit) && !hit?.closest("header, #bar, #strip")) cut.push([each.textContent, "covered by", hit?.outerHTML.slice(0, 60)]);
    }
  }
  return cut;
};
