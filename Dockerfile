# The image of a job on Kubernetes: docker build -t IMAGE . && docker push IMAGE
FROM python:3.12-slim
WORKDIR /job
COPY . .
RUN pip install --no-cache-dir .
# `python -m launch k8s --image=IMAGE ...` says what is run; a program of your own is copied here too.
# A number, so that Kubernetes can see that it is not root; launch/k8s.py lets this group write to volumes.
RUN useradd --uid 1000 --create-home job
USER 1000
CMD ["python", "-m", "tf2dist.doctor"]
