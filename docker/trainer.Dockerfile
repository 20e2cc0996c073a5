# The GPU machine: what learns, and serves policies. It joins no robot's DDS domain, and has no ROS in it.
#   docker build -f docker/trainer.Dockerfile -t rlinf-trainer .                              (--build-arg TORCH=cpu: no GPU)
FROM python:3.12-slim-bookworm AS build
WORKDIR /rlinf
COPY . .
ARG TORCH=cuda
RUN python -m venv .venv && .venv/bin/python scripts/install.py trainer vla --torch "$TORCH"

FROM python:3.12-slim-bookworm
RUN useradd --create-home --uid 2000 rlinf && install -d -o rlinf /rlinf /rlinf/runs
COPY --from=build --chown=rlinf /rlinf /rlinf
ENV PATH=/rlinf/.venv/bin:$PATH
USER 2000
WORKDIR /rlinf
CMD ["rlinf", "train", "--help"]
