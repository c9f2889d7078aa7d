# widthwise with the exact versions of constraints.txt, for a CPU; for a GPU:
#   docker build --build-arg TORCH_INDEX=https://pypi.org/simple -t widthwise:gpu .
# (torch on PyPI is that for CUDA; an index of PyTorch has others), and from a folder that the container may write:
#   docker run --gpus all -v "$PWD:/work" widthwise:gpu train x_200m
FROM python:3.12-slim-bookworm

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1

COPY constraints.txt /tmp/widthwise/
# torch first and alone, so that a change of the package does not fetch it again.
RUN pip install -c /tmp/widthwise/constraints.txt --extra-index-url "${TORCH_INDEX}" torch numpy

COPY pyproject.toml setup.py MANIFEST.in README.md CHANGELOG.md LICENSE /tmp/widthwise/
COPY src /tmp/widthwise/src
COPY configs /tmp/widthwise/configs
RUN pip install -c /tmp/widthwise/constraints.txt "/tmp/widthwise[hf]" \
    && useradd --create-home --uid 1000 widthwise \
    && install -d -o widthwise /work

USER 1000
WORKDIR /work
ENV WIDTHWISE_CACHE=/home/widthwise/cache
ENTRYPOINT ["widthwise"]
CMD ["--help"]
