# lakefeed as an image: every source and both formats, with a Java runtime and the jars, so that it starts offline.
#   docker build --tag lakefeed .
#   docker run --rm lakefeed demo
#   docker run --rm -v "$PWD:/work" -e PGPASSWORD lakefeed run shop.yaml
FROM python:3.13-slim-trixie AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE requirements.lock requirements-java.lock ./
COPY src ./src
# The versions of the lock; the tools of the tests are in it too, and constraints install nothing by themselves.
RUN sed -n 's/^\([A-Za-z0-9._-]*==[^\\]*\)\\$/\1/p' requirements.lock requirements-java.lock > constraints.txt \
 && python -m venv /opt/lakefeed \
 && /opt/lakefeed/bin/pip install --no-cache-dir --constraint constraints.txt '.[connect,iceberg,java,mysql,object-store,openlineage,otel,postgres]'

FROM python:3.13-slim-trixie
RUN useradd --create-home --uid 10001 lakefeed && mkdir /work && chown lakefeed /work
COPY --from=build /opt/lakefeed /opt/lakefeed
ENV PATH=/opt/lakefeed/bin:$PATH PYTHONUNBUFFERED=1
USER lakefeed
# The jars of both formats, with and without those for tables in S3, fetched now.
RUN python -c "from lakefeed import spark_session; [spark_session(formats=(one,), stores=two).stop() for one in ('delta', 'iceberg') for two in ((), ('s3',))]"
WORKDIR /work
STOPSIGNAL SIGTERM
ENTRYPOINT ["lakefeed"]
CMD ["--help"]
