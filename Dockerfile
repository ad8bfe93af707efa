# An image that serves the built-in model, or models from a folder mounted at /models.
# docs/how-to/deploy.md says how to run it. No test builds it: they only check what this file says.

ARG PYTHON=3.12
FROM python:${PYTHON}-slim AS build
# Others are otel, openvino and cluster.
ARG EXTRAS=filters,gguf,postgres
WORKDIR /source
COPY pyproject.toml hatch_build.py README.md LICENSE NOTICE ./
COPY src src
RUN python -m venv /opt/onward && PACKAGE_KERNELS=here /opt/onward/bin/pip install --no-cache-dir --disable-pip-version-check ".[$EXTRAS]"

FROM python:${PYTHON}-slim
LABEL org.opencontainers.image.title="Onward" \
    org.opencontainers.image.description="OpenAI's Completions API, served from your own machine" \
    org.opencontainers.image.licenses="Apache-2.0 AND MIT"
COPY --from=build /opt/onward /opt/onward
RUN useradd --system --uid 10001 --create-home onward && install -d -o onward -g onward /cache /data /models
ENV PATH=/opt/onward/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    XDG_CACHE_HOME=/cache \
    XDG_STATE_HOME=/data \
    ONWARD_HOST=0.0.0.0 \
    ONWARD_PORT=8000
USER onward
# With a database of another machine, rows of the ledger that it does not have yet are in /data.
VOLUME ["/cache", "/data", "/models"]
# Model folders are found by name here, and so is onward.toml.
WORKDIR /models
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --start-interval=1s \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen(f'http://127.0.0.1:{os.environ[\"ONWARD_PORT\"]}/health', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["onward"]
CMD ["serve"]
