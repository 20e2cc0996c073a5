# All in one, without a robot and without a GPU: make demo, and every tutorial that needs no simulator but ours.
#   docker build -f docker/simulator.Dockerfile -t rlinf . && docker run --rm --shm-size=2g -v rlinf-runs:/rlinf/runs rlinf
FROM python:3.12-slim-bookworm AS build
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends build-essential libegl1 libgl1 libosmesa6 \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /rlinf
COPY . .
RUN RLINF_TORCH=cpu scripts/setup.sh trainer sim vla data page

FROM python:3.12-slim-bookworm
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends libegl1 libgl1 libosmesa6 \
    && rm -rf /var/lib/apt/lists/* && useradd --create-home --uid 2000 rlinf && install -d -o rlinf /rlinf /rlinf/runs
COPY --from=build --chown=rlinf /rlinf /rlinf
ENV PATH=/rlinf/.venv/bin:$PATH
USER 2000
WORKDIR /rlinf
CMD ["rlinf", "demo"]
