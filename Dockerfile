# Runs the quickstart: docker build -t hpsearch . && docker run --rm hpsearch
# To keep its study: docker run --rm -v "$PWD/quickstart:/hpsearch/quickstart" hpsearch
FROM python:3.11-slim
# An index with torch's builds for the CPU, which are smaller by gigabytes; pip reads it from the environment.
ARG PIP_EXTRA_INDEX_URL
RUN apt-get update \
    && apt-get install --no-install-recommends --yes make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /hpsearch
COPY . .
RUN make .venv/.studies
CMD ["make", "quickstart"]
