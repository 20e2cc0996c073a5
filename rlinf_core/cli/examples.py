"""Examples of ``rlinf --help`` and of each command: every line can be pasted."""

from __future__ import annotations

EXAMPLES: dict[str, str] = {
    "recipes": "rlinf recipes",
    "robots": "rlinf robots",
    "tasks": "rlinf tasks",
    "simulators": "rlinf simulators",
    "config": """
        rlinf config demo                                  # every value of the recipe demo
        rlinf config demo --set station.robot=fetch --check  # whether robot, task and recipe fit""",
    "new robot": """
        rlinf new robot arm.xml --name my_arm              # an MJCF; writes the folder my_arm
        rlinf new robot arm.urdf --tool flange --out robots/my_arm""",
    "demo": """
        rlinf demo                                         # a simulated Franka inserts a peg
        rlinf demo demo_tiny --out runs/tiny               # a smaller task, in about two minutes
        rlinf demo demo_vision --set seed=3 --web          # another recipe and seed, with the operator's page""",
    "train": """
        rlinf train sim_sac --out runs/sac                 # SAC in a simulator, without ROS
        rlinf train sim_ppo --set seed=1 online.max_minutes=5
        rlinf train demo --out runs/a                      # the trainer of stations, until Ctrl-C
        rlinf train sim_sac --out runs/sac                 # the same again resumes the run""",
    "plan": """
        rlinf plan sim_sac --set placement=auto            # where its parts would run here, and how fast
        rlinf plan sim_sac --gpus 2 --picture plan.svg     # on another machine, as a picture""",
    "trace": "rlinf trace runs/sac --out trace.json              # open it at "
    "https://ui.perfetto.dev",
    "sweep": """
        rlinf sweep sim_sac --set seed=0,1,2 --out runs/seeds
        rlinf sweep sim_sac --set seed=0,1 algorithm.learning_rate=3e-4,1e-3 --jobs 2  # 4 runs, 2 at a time""",
    "compare": """
        rlinf compare runs/sac runs/ppo --out compare.png  # success over time steps
        rlinf compare runs/seeds/0* --csv curves.csv       # the mean of the seeds of a sweep, and a table""",
    "collect": """
        rlinf collect demo --episodes 5                    # by the task's script, in simulation
        rlinf collect demo --set station.operator.kind=keyboard  # by hand, with the keyboard""",
    "up": """
        rlinf up demo --out runs/a --web                   # a simulated station with the operator's page
        rlinf up franka_twin --episodes 3                  # a Franka's twin, for three demonstrations
        rlinf up my_robot.yaml --set station.operator.kind=spacemouse""",
    "run": """
        rlinf up demo --out runs/a                         # in one terminal
        rlinf train demo --out runs/a                      # in a second one
        rlinf run demo --out runs/a                        # in a third one: the phases""",
    "teleop": """
        rlinf up demo --set station.operator.kind=keyboard station.lockstep=false  # in another terminal, first
        rlinf teleop demo --set station.operator.kind=keyboard""",
    "fake-device": """
        rlinf fake-device spacemouse                       # prints the path of its device file
        rlinf fake-device pedal --path pedal.dev""",
    "replay": """
        rlinf replay runs/x/recordings/EPISODE             # at the simulated station that recorded it
        rlinf replay EPISODE --recipe my/recipe.yaml       # at another station of the same robot
        rlinf replay EPISODE --in-sim --recipe demo        # error of a simulator by time step""",
    "completion": """
        eval "$(rlinf completion bash)"                    # in ~/.bashrc
        eval "$(rlinf completion zsh)"                     # in ~/.zshrc""",
    "status": """
        rlinf status                                       # the station of the recipe demo
        rlinf status demo --set station.name=station_b station.domain_id=43""",
    "arm": "rlinf arm demo",
    "disarm": "rlinf disarm demo",
    "fault reset": """
        rlinf fault reset demo                             # prints the name of the current fault
        rlinf fault reset demo --cause 'robot fault'""",
    "set-instruction": """
        rlinf set-instruction 'go to the red mark' demo
        rlinf set-instruction '' demo                      # that of the scene or task again""",
    "gripper activate": "rlinf gripper activate robot",
    "param list": "rlinf param list interlock demo",
    "param get": "rlinf param get interlock limits.speed demo",
    "param set": """
        rlinf param set interlock limits.speed 0.1 demo    # [m/s]
        rlinf param set twin inject user_stop franka_twin  # a fault of a twin""",
    "lifecycle": """
        rlinf lifecycle interlock deactivate demo
        rlinf lifecycle interlock activate demo""",
    "fleet up": """
        rlinf fleet up demo --stations 4 --out runs/x      # station_1 to station_4
        rlinf fleet up demo --stations left right --respawn""",
    "fleet enroll": "rlinf fleet enroll station_b --out carry/station_b",
    "fleet revoke": "rlinf fleet revoke station_b",
    "fleet list": "rlinf fleet list",
    "fleet status": """
        rlinf fleet status runs/x                          # live, until Ctrl-C
        rlinf fleet status runs/x --once""",
    "fleet promote": """
        rlinf fleet promote runs/x                         # the policy on trial
        rlinf fleet promote runs/x --version 7""",
    "fleet rollback": "rlinf fleet rollback runs/x",
    "fleet pin": """
        rlinf fleet pin runs/x --version 7 --stations station_1
        rlinf fleet pin runs/x --off                       # all stations follow again""",
    "fleet drain": """
        rlinf fleet drain runs/x station_1                 # it ends its episode and begins no other
        rlinf fleet drain runs/x station_1 --off           # it plays again""",
    "show": """
        rlinf show runs/x                                  # one line for each episode
        rlinf show runs/x/recordings/EPISODE --plot episode.png  # one episode: topics and a picture""",
    "import rlinf": "rlinf import rlinf maniskill_ppo_mlp.yaml --out runs/recipe.yaml",
    "import-contract": "rlinf import-contract contract.yaml --out robots/my_arm",
    "view": """
        rlinf view demo                                    # writes layouts for RViz and Foxglove
        rlinf view demo --rviz                             # and opens RViz""",
    "chat": """
        rlinf chat runs/sums                               # you write the messages
        rlinf chat runs/sums --scene 1000000               # it plays a held-out scene""",
    "data list": "rlinf data list runs/x",
    "data show": "rlinf data show runs/x --plot episode.png",
    "data check": """
        rlinf data check runs/x
        rlinf data check runs/x --recipe demo --json check.json""",
    "data repair": "rlinf data repair runs/x --out runs/repaired",
    "data merge": "rlinf data merge runs/a runs/b --out runs/both",
    "data split": """
        rlinf data split runs/x --out runs/split           # a folder for each outcome
        rlinf data split runs/x --out runs/split --fractions train=0.9 val=0.1 --seed 1""",
    "data stats": "rlinf data stats runs/x --json stats.json",
    "data throughput": "rlinf data throughput runs/x",
    "data export lerobot": "rlinf data export lerobot runs/x --out lerobot_x",
    "data export rerun": "rlinf data export rerun runs/x --out rerun_x",
    "data push": "rlinf data push runs/x --to me/takes",
    "data pull": "rlinf data pull me/takes --out runs/takes",
    "policy push": "rlinf policy push runs/x --to me/policy",
    "policy pull": "rlinf policy pull me/policy --out runs/policy",
    "data import lerobot": """
        rlinf data import lerobot lerobot_x --out runs/imported --recipe demo_vision
        rlinf data import lerobot lerobot_x --out runs/imported --recipe demo_vision --camera front=laptop""",
    "reward train": "rlinf reward train runs/x --out success.safetensors --cameras wrist",
    "world fit": "rlinf world fit runs/x --seconds 60",
    "world fit-video": "rlinf world fit-video runs/x --film imagined.mp4",
    "world splats": "rlinf world splats pictures/transforms.json --out background.ply",
    "world check": "rlinf world check runs/x --steps 10 --out world.png",
    "world rank": """
        rlinf world rank runs/x                            # every policy of the run
        rlinf world rank runs/x runs/a runs/b --episodes 100""",
    "eval": """
        rlinf eval runs/x --episodes 50 --video out.mp4    # the run's newest policy
        rlinf eval runs/x --vary station.robot=panda_maniskill,panda_gym_hil  # in other simulators""",
    "duel": """
        rlinf duel runs/a runs/b                           # until a test decides, 200 pairs at most
        rlinf duel runs/a runs/b --by success time --odds 2""",
    "why": "rlinf why runs/x",
    "monitor fit": """
        rlinf monitor fit runs/x                           # from the run's recordings
        rlinf monitor fit runs/x --episodes 300 --alpha 0.05  # from episodes in simulation""",
    "serve": """
        rlinf serve runs/x                                 # for programs on this machine
        rlinf serve runs/x --host 0.0.0.0 --api-key-file serve.key --tls-cert server.pem --tls-key server.key""",
    "make-tiny-vla": "rlinf make-tiny-vla pi0 --out models/tiny_pi0",
    "vla adapters": "rlinf vla adapters runs/x --out adapters",
    "vla lerobot": "rlinf vla lerobot runs/x --out lerobot_policy",
    "vla policy": "rlinf vla policy sim_vla --set policy.checkpoint=models/pi0 --out policies",
    "find-dynamics": """
        rlinf find-dynamics runs/x --json dynamics.json    # delay, lag and gain of the arm
        rlinf find-dynamics runs/x --recipe demo --out fitted.yaml  # a simulator like the arm""",
    "drill": """
        rlinf drill                                        # all scenarios, in a few minutes
        rlinf drill --only 'commands stop' --json drill.json""",
    "calibrate": """
        rlinf calibrate my_robot.yaml                      # prints the lines
        rlinf calibrate my_robot.yaml --write              # writes them into the robot's files""",
    "first-motion": "rlinf first-motion my_robot.yaml",
    "camera": """
        rlinf camera locate my_robot.yaml wrist --square 0.025 --write
        rlinf camera align my_robot.yaml wrist             # whether it has moved""",
    "check": """
        rlinf check sim maniskill                          # both front ends of a simulator
        rlinf check jail                                   # the jail for programs of agents
        rlinf check model models/pi0 --recipe sim_vla --data runs/x""",
    "messages": "rlinf messages",
    "explain": """
        rlinf explain RL-E101
        rlinf explain                                      # all codes""",
    "doctor": """
        rlinf doctor                                       # this machine
        rlinf doctor station demo                          # the robot side of a recipe's station""",
}
OVERVIEW = """examples:
  rlinf doctor                              # installed and missing parts of this machine, and how to get them
  rlinf demo                                # demonstrations, SFT, RL, and an evaluation before and after
  rlinf demo demo_vision --set seed=3       # another recipe, another seed
  rlinf collect demo --episodes 5 --set station.operator.kind=keyboard # demonstrations by hand; --out resumes
  rlinf train demo                          # the trainer alone, waiting for stations
  rlinf train sim_sac --out runs/sac        # SAC in simulation alone, without ROS; sim_ppo for PPO
  rlinf plan sim_sac --set placement=auto   # where its parts would run here, how fast, and why
  rlinf new robot arm.xml                   # your own arm, from its MJCF or URDF: simulator, limits, task and recipe
  rlinf check sim maniskill                 # test a simulator through both front ends
  rlinf train text_arithmetic               # a language model learns to add; rlinf chat RUN talks with it
  rlinf compare runs/sac runs/ppo           # their curves in one picture
  rlinf sweep sim_sac --set seed=0,1,2 algorithm.learning_rate=3e-4,1e-3 --jobs 2
  rlinf up demo --out runs/a                # the station alone, for a separate trainer
  rlinf run demo --out runs/a               # its phases: collect, wait for the trainer, evaluate, improve, evaluate
  rlinf up demo --set station.operator.kind=keyboard station.lockstep=false # and rlinf teleop demo in another terminal
  rlinf up franka_twin --episodes 3 --json FILE # three episodes of a Franka's twin: docs/robots/index.md
  rlinf up demo --web                       # with the operator's page, http://127.0.0.1:8080
  rlinf eval runs/x/policy/policy.safetensors --episodes 50 --video out.mp4
  rlinf duel runs/a runs/b                  # compare two policies on the same scenes until a test decides
  rlinf why runs/x                          # find the fault that keeps a run from learning
  rlinf explain RL-E101                     # cause and remedy of an error, by the code at its end
  rlinf show runs/x                         # list its recordings; for a single one also its topics
  rlinf data check runs/x                   # check all recordings; also rlinf data repair, merge, split, stats, export
  rlinf status                              # state of a running station; also rlinf fault reset, rlinf arm
  rlinf param set twin inject user_stop     # set a parameter of a running node; rlinf param list twin lists them
  rlinf fleet enroll station_b --out carry/station_b # credentials of a station for a network (docs/howto/fleet.md)
  rlinf fleet up demo --stations 4 --out runs/x # a trainer and simulated stations, all on this machine
  rlinf fleet status runs/x                 # its stations: policies, backlog, success; also promote, rollback, pin, drain
  rlinf serve runs/x                        # serve its newest policy to stations and openpi-client
  rlinf find-dynamics runs/x                # delay and lag of its arm, from its recordings
  rlinf eval runs/x --vary station.robot=panda_maniskill,panda_gym_hil,fetch # the same policy in other simulators
"""
