# The image of a job on Kubernetes: docker build -t IMAGE . && docker push IMAGE
FROM python:3.12-slim
WORKDIR /job
COPY . .
RUN pip install --no-cache-dir .
# `python -m launch k8s --image=IMAGE ...` says what is run; a program of your own is copied here too.
RUN useradd --create-home job
USER job
CMD ["python", "-m", "tf2dist.doctor"]
