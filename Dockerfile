# The image of a job on Kubernetes: docker build -t IMAGE . && docker push IMAGE
FROM python:3.12-slim
WORKDIR /job
COPY . .
# For GPUs: docker build --build-arg EXTRAS=trainers,cuda
ARG EXTRAS=trainers
RUN pip install --no-cache-dir ".[$EXTRAS]"
# A number, so that Kubernetes can see that it is not root; `launch k8s` lets this group write to volumes.
RUN useradd --uid 1000 --create-home job
USER 1000
CMD ["python", "-m", "tf2dist.doctor"]
