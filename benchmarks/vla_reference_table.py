"""The table of docs/howto/vla.md: how near each policy family is to its reference."""

from __future__ import annotations

NO_DENSITY = dict.fromkeys(("log_probs", "rl_step"), "has no density")
NO_ADAPTERS = dict.fromkeys(("peft_read", "peft_written"), "has no adapters")
VISUOMOTOR = {"sft_loss": "1e-5, LeRobot 0.4.4 (`test_visuomotor.py`)", **NO_DENSITY, **NO_ADAPTERS}
# why vla_references does not measure a cell, by family and column
UNMEASURED: dict[str, dict[str, str]] = {
    "pi0": {"exported": "layout of transformers"},
    "act": VISUOMOTOR,
    "diffusion": VISUOMOTOR,
}
MOVES, ADAPTERS = "moves the weights", "1e-4 of merged ones (`test_adapter_files.py`)"
# bounds in the tests of families that vla_references does not run
OTHER_FAMILIES: dict[str, dict[str, str]] = {
    "GR00T N1.5": {
        "loads": "yes",
        "difference": "1e-5, LeRobot 0.4.4 (`test_groot.py`)",
        "sft_loss": "1e-5, LeRobot 0.4.4",
        "log_probs": "1e-5 in float64",
        "sft_step": MOVES,
        "rl_step": MOVES,
        "peft_read": ADAPTERS,
        "peft_written": ADAPTERS,
        "exported": "read again here; LeRobot 0.6 has N1.7 alone",
    },
    "OpenVLA, OpenVLA-OFT": {
        "loads": "yes",
        "difference": "1e-4 of transformers' layers (`test_openvla.py`); its code is on no index",
        "sft_loss": "no reference",
        "log_probs": "1e-5 by hand",
        "sft_step": MOVES,
        "rl_step": MOVES,
        "peft_read": ADAPTERS,
        "peft_written": ADAPTERS,
        "exported": "read again here; its code is on no index",
    },
    "Qwen2.5-VL": {
        "loads": "yes",
        "difference": "1e-4, transformers (`test_qwen_vl.py`)",
        "sft_loss": "1e-5, transformers",
        "log_probs": "1e-5, vLLM (`test_action_engine.py`)",
        "sft_step": MOVES,
        "rl_step": MOVES,
        "peft_read": ADAPTERS,
        "peft_written": ADAPTERS,
        "exported": "transformers and vLLM load it",
    },
    "GR00T N1.6": {
        "loads": "yes",
        "difference": "9e-07, NVIDIA's code (`groot_n1_6_itself.json`)",
        "sft_loss": "1e-07, NVIDIA's code",
        "log_probs": "drawn and computed again",
        "sft_step": MOVES,
        "rl_step": MOVES,
        "peft_read": "7e-07, NVIDIA's code",
        "peft_written": "9e-07, NVIDIA's code",
        "exported": "0, NVIDIA's code",
    },
    "WALL-OSS": {"loads": "no kind; untested by `policy.kind: lerobot`"},
}
COLUMNS = {
    "difference": "chunk",
    "sft_loss": "SFT loss",
    "log_probs": "log-probabilities",
    "sft_step": "SFT step",
    "rl_step": "GRPO step",
    "peft_read": "PEFT read",
    "peft_written": "PEFT written",
    "exported": "exported",
}


def table(summary: dict) -> str:
    """Return the table of docs/howto/vla.md: largest differences, and gaps with their reasons."""
    cases = summary["cases"]
    rows = [
        "| family | layout loads | " + " | ".join(COLUMNS.values()) + " |",
        "|" + "---|" * (len(COLUMNS) + 2),
    ]
    for family in summary["families"]:
        cells = []
        for key in COLUMNS:
            values = [
                case[key] for case in cases.values() if case["family"] == family and key in case
            ]
            if key.endswith("_step") and values:
                cells.append(MOVES if min(values) > 0.0 else "no")
            elif values:
                cells.append(f"{max(values):.0e}" if max(values) else "0")
            else:
                cells.append(UNMEASURED.get(family, {}).get(key, "no"))
        rows.append(f"| `{family}` | yes | " + " | ".join(cells) + " |")
    for family, texts in OTHER_FAMILIES.items():
        cells = [texts.get(key, "") for key in ("loads", *COLUMNS)]
        rows.append(f"| {family} | " + " | ".join(cells) + " |")
    return "\n".join(rows)
