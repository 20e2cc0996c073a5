"""Write docs/images/demo.gif from the film of a finished demo, before and after RL.

    rlinf demo --out runs/gif
    python scripts/demo_gif.py runs/gif [--height 300] [--out docs/images/demo.gif]

The demo writes the film before_after.mp4 itself. The GIF has at most 3 MB, so that the README loads
fast.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILM = "before_after.mp4"
MAX_BYTES = 3_000_000
FILTER = (
    "fps=10,scale=-2:{height}:flags=lanczos,tpad=stop_mode=clone:stop_duration=1.5,split[x][y];"
    "[x]palettegen=max_colors=96:stats_mode=diff[p];[y][p]paletteuse=dither=none:diff_mode=rectangle"
)


def main() -> None:
    """Convert the film and check the size of the GIF."""
    import imageio_ffmpeg

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="folder of a finished rlinf demo")
    parser.add_argument("--height", type=int, default=300, help="of the GIF [px] (default: 300)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images/demo.gif")
    options = parser.parse_args()
    film = options.run / FILM
    if not film.is_file():
        raise SystemExit(
            f"{film}: expected the film of a finished demo, got no file. Run rlinf demo --out "
            f"{options.run}"
        )
    subprocess.run(
        [
            imageio_ffmpeg.get_ffmpeg_exe(),
            "-y",
            "-v",
            "error",
            "-i",
            str(film),
            "-filter_complex",
            FILTER.format(height=options.height),
            "-loop",
            "0",
            str(options.out),
        ],
        check=True,
    )
    size = options.out.stat().st_size
    if size > MAX_BYTES:
        raise SystemExit(
            f"{options.out}: expected at most {MAX_BYTES:,} bytes, got {size:,}. Take a smaller "
            f"--height"
        )
    print(f"{options.out}: {size:,} bytes")


if __name__ == "__main__":
    main()
