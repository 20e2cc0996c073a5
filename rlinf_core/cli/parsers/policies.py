"""Parsers of the commands for policies: eval, duel, serve, vla, chat, monitor, world and others."""

from __future__ import annotations

from pathlib import Path

from rlinf_core.cli.arguments import (
    JSON,
    MAX_PORT,
    PICTURES,
    SET,
    SEVERAL,
    Commands,
    add_new_folder,
    add_number,
    add_pull_options,
    add_push_options,
    command,
    fraction,
    output_file,
)
from rlinf_core.deploy.serving import PORT


def evaluate(commands: Commands) -> None:
    """Add ``rlinf eval``."""
    evaluate = command(
        commands,
        "eval",
        "cli.evaluate:evaluate_command",
        "measure the success rate of a policy on held-out scenes, in simulation",
    )
    evaluate.add_argument(
        "checkpoint", type=Path, help="a policy-*.safetensors, or a run folder (its newest policy)"
    )
    evaluate.add_argument(
        "--recipe", help="recipe with station and task (default: the run's own, or demo)"
    )
    evaluate.add_argument(
        "--set",
        **SET,
        help="override, e.g. station.robot=panda_gym_hil: the same policy in another simulator",
    )
    evaluate.add_argument(
        "--vary",
        nargs="*",
        **SEVERAL,
        metavar="KEY=A,B,...",
        help="one line for each value, or each combination, e.g. "
        "simulation.randomise.delay_s=0,0.1,0.2",
    )
    add_number(evaluate, "--episodes", "number of scenes, one episode each", low=1, default=50)
    add_number(
        evaluate,
        "--first-seed",
        "seed of the first scene; training uses smaller ones",
        low=0,
        default=1_000_000,
        metavar="SEED",
    )
    evaluate.add_argument(
        "--video", type=output_file(".mp4", ".mkv", ".mov"), help="write the first episodes as MP4"
    )
    evaluate.add_argument("--json", **JSON, help="write the result as one flat object")


def duel(commands: Commands) -> None:
    """Add ``rlinf duel``."""
    duel = command(
        commands,
        "duel",
        "cli.duel:duel",
        "find the better of two policies, in simulation",
        (
            "Plays both policies on one held-out scene after the other, in random order. Stops as "
            "soon as a sequential test decides. The output does not name the policies before the "
            "end."
        ),
    )
    for name in ("a", "b"):
        duel.add_argument(
            name, metavar=name.upper(), type=Path, help="a policy-*.safetensors, or a run folder"
        )
    duel.add_argument(
        "--recipe", help="recipe with station and task (default: that of A's run, or demo)"
    )
    duel.add_argument("--set", **SET, help="override of that recipe")
    add_number(duel, "--pairs", "largest number of pairs", low=1, default=200, dest="max_pairs")
    add_number(
        duel, "--first-seed", "seed of the first scene", low=0, default=2_000_000, metavar="SEED"
    )
    duel.add_argument(
        "--by",
        dest="measures",
        nargs="+",
        default=["success"],
        metavar="MEASURE",
        help="measures by priority; the first one that differs counts: success, time of two "
        "successes, return (default: success)",
    )
    add_number(
        duel,
        "--odds",
        "smallest odds ratio that must be detected; 3 detects 90 against 70 %% (default: 3)",
        low=1.1,
        kind=float,
        default=3.0,
        metavar="RATIO",
    )
    duel.add_argument("--json", **JSON, help="write the result as one flat object")


def serve(commands: Commands) -> None:
    """Add ``rlinf serve``."""
    serve = command(
        commands,
        "serve",
        "cli.serve:serve",
        "serve a policy over the network: observations in, actions out",
        (
            "It speaks openpi's websocket protocol. Its clients are stations with "
            "station.policy.backend=remote, and programs with openpi-client. Loads the newest "
            "policy, computes once to warm up, and listens. /healthz then answers, and /metrics "
            "has counters. New files in the folder are served at once. A running episode ends "
            "with its version."
        ),
    )
    serve.add_argument(
        "policy", type=Path, help="a policy-*.safetensors, or a folder with some (a run)"
    )
    serve.add_argument(
        "--recipe",
        metavar="RECIPE",
        help="recipe of a policy of your own kind. Its policy.kind names the Python file or "
        "package that may be imported. Built-in and installed kinds need none",
    )
    serve.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to bind (default: 127.0.0.1, this machine alone)",
    )
    add_number(
        serve,
        "--port",
        f"TCP port; 0 takes a free one (default: {PORT})",
        low=0,
        high=MAX_PORT,
        default=PORT,
        metavar="PORT",
    )
    serve.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="file with the key of the clients: openpi-client "
        "(api_key) and stations (station.policy.api_key_file)",
    )
    serve.add_argument(
        "--tls-cert",
        type=Path,
        metavar="FILE",
        help="certificate of this server, PEM: wss:// instead of ws://",
    )
    serve.add_argument("--tls-key", type=Path, metavar="FILE", help="its private key, PEM")
    serve.add_argument(
        "--plaintext",
        action="store_true",
        help="listen beyond this machine without encryption or without a key",
    )
    add_number(
        serve,
        "--lerobot-port",
        "also answer LeRobot's robot client (asynchronous inference, gRPC) at this port of "
        "127.0.0.1; 0 takes a free one (default: not)",
        low=0,
        high=MAX_PORT,
        metavar="PORT",
    )
    add_number(serve, "--max-batch", "largest number of requests in one batch", low=1, default=16)
    add_number(
        serve,
        "--max-wait-ms",
        "longest wait of a request for others of its batch (default: 5)",
        low=0,
        kind=float,
        default=5.0,
        metavar="MS",
    )
    serve.add_argument(
        "--device", default="auto", help="auto, the best available one (default), or cpu, cuda, ..."
    )
    serve.add_argument(
        "--precision",
        choices=["float32", "bfloat16"],
        default="float32",
        help="number format of a large model's layers (default: float32)",
    )
    serve.add_argument(
        "--execution",
        choices=["eager", "graphs", "compiled"],
        default="eager",
        help="graphs: a large model is recorded as CUDA graphs; compiled: torch.compile, then "
        "recorded. Both start more slowly (default: eager)",
    )


def make_tiny_vla(commands: Commands) -> None:
    """Add ``rlinf make-tiny-vla``."""
    tiny = command(
        commands,
        "make-tiny-vla",
        "cli.serve:tiny",
        "make a tiny checkpoint of a published family, with random weights",
        (
            "It has the family's architecture, key names, files and kind of tokenizer, in a few "
            "megabytes. It replaces a published checkpoint in a test of a recipe or a station "
            "(docs/howto/vla.md)."
        ),
    )
    tiny.add_argument(
        "family",
        help="pi0, dexbotic_pi0, pi05, smolvla, groot, groot_n1_6, groot_n1_7, openvla, "
        "openvla_oft, pi0_fast, xvla or qwen_vl",
    )
    add_new_folder(tiny, dest="folder")
    tiny.add_argument(
        "--tokenizer",
        type=Path,
        metavar="FILE",
        help="a tokenizer.json, for example a published one "
        "(default: a small byte-level one of the same kind)",
    )
    add_number(
        tiny,
        "--horizon",
        "actions of a chunk, for families that store it (default: that of policy.horizon)",
        low=0,
        default=0,
    )
    add_number(tiny, "--actions", "openvla_oft: size of an action", low=1, default=7)
    add_number(tiny, "--state", "openvla_oft: size of a state", low=1, default=8)
    add_number(tiny, "--seed", "seed of the weights", low=0, default=0, metavar="SEED")


def vla(commands: Commands) -> None:
    """Add ``rlinf vla``."""
    written_formats = (
        "write a policy in the format of another library, or a published one as a file"
    )
    vla = commands.add_parser("vla", help=written_formats).add_subparsers(
        required=True, metavar="COMMAND"
    )
    adapters = command(
        vla,
        "adapters",
        "cli.serve:adapters",
        "write a policy's LoRA adapters in the format of the library peft",
        (
            "Writes adapter_config.json and adapter_model.safetensors, for "
            "PeftModel.from_pretrained with the published model (docs/howto/vla.md)."
        ),
    )
    adapters.add_argument(
        "policy", type=Path, help="a policy-*.safetensors trained with policy.lora, or a run folder"
    )
    add_new_folder(adapters, dest="folder")
    lerobot = command(
        vla,
        "lerobot",
        "cli.serve:lerobot",
        "write a policy of kind act or diffusion as a folder of LeRobot",
        (
            "Writes config.json, model.safetensors and both processors, which LeRobot's own class "
            "loads (docs/howto/vla.md)."
        ),
    )
    lerobot.add_argument("policy", type=Path, help="a policy-*.safetensors, or a run's folder")
    add_new_folder(lerobot, dest="folder")
    wrap = command(
        vla,
        "policy",
        "cli.serve:policy_file",
        "write a policy file of a published folder, as it is",
        (
            "The recipe's policy, untrained, for rlinf eval, rlinf serve and stations. With "
            "policy.kind=lerobot it is any policy of LeRobot, played by LeRobot's class in its own "
            "Python (docs/howto/vla.md)."
        ),
    )
    wrap.add_argument("recipe", help="a recipe or file with the task")
    wrap.add_argument("--set", **SET, help="override, e.g. policy.checkpoint=/models/act")
    wrap.add_argument("--out", dest="folder", type=Path, required=True, help="folder to write to")


def policy_commands(commands: Commands) -> None:
    """Add the commands for policies at the Hub."""
    policies = commands.add_parser(
        "policy", help="push policies to the Hugging Face Hub, and pull them"
    ).add_subparsers(required=True, metavar="COMMAND")
    push = command(
        policies,
        "push",
        "cli.hub:push_policy",
        "send a policy with its recipe and report to the Hugging Face Hub",
    )
    push.add_argument(
        "path",
        type=Path,
        help="a policy file, a run for its newest policy, or a folder of `rlinf vla lerobot`",
    )
    add_push_options(push)
    add_pull_options(
        command(
            policies,
            "pull",
            "cli.hub:pull_policy",
            "download a policy from the Hugging Face Hub",
            "`rlinf eval FOLDER` and `rlinf serve FOLDER` take the folder.",
        )
    )


def monitor_commands(commands: Commands) -> None:
    """Add the commands for a failure monitor."""
    subparsers = commands.add_parser(
        "monitor",
        help="fit a monitor that finds failing episodes while they are played, "
        "with a bound on false alarms",
    ).add_subparsers(required=True, metavar="COMMAND")
    fit = command(
        subparsers,
        "fit",
        "cli.monitor:fit",
        "fit a failure monitor to episodes of a run's policy",
        (
            "Uses recordings that the policy played alone, or plays --episodes in simulation. "
            "Prints the false alarms and the failures found on episodes held out. A station takes "
            "the file as station.policy.monitor."
        ),
    )
    fit.add_argument("run_dir", metavar="run", type=Path, help="a run folder")
    fit.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="a new file (default: monitor.safetensors in the run)",
    )
    fit.add_argument(
        "--alpha",
        type=fraction,
        default=0.05,
        metavar="FRACTION",
        help="largest share of successful episodes that raise an alarm (default: 0.05)",
    )
    add_number(
        fit,
        "--episodes",
        "number of episodes to play in simulation; 0 takes the recordings (default)",
        low=0,
        default=0,
    )
    add_number(
        fit,
        "--seed",
        "seed of the split and of the episodes in simulation",
        low=0,
        default=0,
        metavar="SEED",
    )
    fit.add_argument("--json", **JSON, help="write the figures as one flat object")


def world_commands(commands: Commands) -> None:
    """Add the commands for world models."""
    worlds = commands.add_parser(
        "world", help="fit, check and use a learned world of a run's task (docs/howto/worlds.md)"
    ).add_subparsers(required=True, metavar="COMMAND")
    fit = command(
        worlds,
        "fit",
        "cli.world:fit",
        "fit a world to the recordings of a run",
        (
            "Takes the episodes of its stations, or the replay in the newest checkpoint of a run "
            "in simulators; every tenth episode is held out. Writes world.safetensors into the "
            "run's folder."
        ),
    )
    fit.add_argument("run_dir", type=Path, metavar="RUN", help="folder of a run")
    fit.add_argument("--set", **SET, help="override of its recipe, e.g. world.history=5")
    add_number(
        fit,
        "--seconds",
        "duration of the fit (default: world.first_updates steps)",
        low=1,
        kind=float,
        metavar="SECONDS",
    )
    fit.add_argument("--json", **JSON, help="write the errors as one flat object")
    fit_video = command(
        worlds,
        "fit-video",
        "cli.world:fit_video",
        "fit a tiny video model to the camera of a run's recordings",
        (
            "The recipe observes one camera. Writes video.safetensors into the run's folder, for "
            "world.video.model=tiny. Every fifth episode is held out for the printed errors."
        ),
    )
    fit_video.add_argument("run_dir", type=Path, metavar="RUN", help="folder of a run")
    fit_video.add_argument("--set", **SET, help="override of its recipe")
    add_number(fit_video, "--updates", "gradient steps", low=1, default=1500)
    fit_video.add_argument(
        "--film",
        type=output_file(".mp4", ".mkv", ".mov"),
        help="film of the last episode, recorded beside imagined",
    )
    fit_video.add_argument("--json", **JSON, help="write the errors as one flat object")
    check = command(
        worlds,
        "check",
        "cli.world:check",
        "print error by step, calibration and horizon of a run's world",
    )
    check.add_argument("run_dir", type=Path, metavar="RUN", help="folder of a run with a world")
    check.add_argument("--set", **SET, help="override of its recipe")
    add_number(check, "--steps", "time steps ahead", low=1, default=20)
    check.add_argument(
        "--out",
        dest="picture",
        type=output_file(*PICTURES),
        help="the picture (default: world.png beside the world); an earlier one is replaced",
    )
    check.add_argument("--json", **JSON, help="write the errors as one flat object")
    rank = command(
        worlds,
        "rank",
        "cli.world:rank",
        "order policies by the success that a learned world predicts",
        (
            "Imagines episodes from the first steps of recorded ones. Trust the order more than "
            "the figures: errors add up over an episode, and the interval covers only chance."
        ),
    )
    rank.add_argument("world", type=Path, metavar="RUN", help="folder of a run with a world")
    rank.add_argument(
        "policies",
        nargs="*",
        **SEVERAL,
        type=Path,
        metavar="POLICY",
        help="policy files, or folders of runs (default: every policy of the run)",
    )
    rank.add_argument("--set", **SET, help="override of its recipe")
    add_number(rank, "--episodes", "imagined episodes of each policy", low=1, default=50)
    rank.add_argument("--json", **JSON, help="write the success of each as one flat object")
    splats = command(
        worlds,
        "splats",
        "cli.world:fit_splats",
        "fit Gaussian splats to pictures, as the background of a simulator",
        (
            "Reads transforms.json of nerfstudio (pictures with camera poses, in the robot's base "
            "frame) and writes a PLY file of 3DGS for station.options.background. It is small and "
            "slow: for a real scene use a trainer on a GPU, which writes the same file."
        ),
    )
    splats.add_argument("transforms", type=Path, help="transforms.json with the pictures' poses")
    splats.add_argument(
        "--out", type=output_file(".ply"), required=True, help="a new file for the splats"
    )
    add_number(splats, "--gaussians", "their number", low=1, high=200000, default=2000)
    add_number(splats, "--updates", "gradient steps", low=1, default=300)
    add_number(
        splats,
        "--size",
        "height of the pictures in the fit",
        low=16,
        high=1024,
        default=128,
        metavar="PIXELS",
    )
    splats.add_argument(
        "--box",
        nargs=6,
        type=float,
        default=[-1.5, -1.5, -1.0, 2.5, 1.5, 1.5],
        metavar="METRES",
        help="box with the first Gaussians: low x y z, then high x y z",
    )
    splats.add_argument("--json", **JSON, help="write the error of the pictures")


def chat(commands: Commands) -> None:
    """Add ``rlinf chat``."""
    chat = command(
        commands,
        "chat",
        "cli.chat:chat_command",
        "talk with a trained language model, or let it play a scene",
        "Prints calls of tools, tokens and reward.",
    )
    chat.add_argument(
        "folder",
        metavar="run",
        type=Path,
        help="folder of a run of rlinf train with env text:TASK (its newest policy)",
    )
    add_number(
        chat,
        "--scene",
        "play this scene of its task; evaluation scenes begin at 1000000 (default: you write "
        "the messages)",
        low=0,
        metavar="SEED",
    )
    add_number(
        chat,
        "--temperature",
        "sampling temperature of tokens; 0 takes the likeliest one (default)",
        low=0,
        kind=float,
        default=0.0,
        metavar="T",
    )
