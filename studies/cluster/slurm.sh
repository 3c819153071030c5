#!/bin/bash
# A search on all nodes of a Slurm job: `sbatch studies/cluster/slurm.sh` in the repository, on a folder that they share.
# The same command again goes on with the study.
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=4
#SBATCH --exclusive
#SBATCH --time=08:00:00
set -euo pipefail

source .venv/bin/activate
# Whoever reaches a port of Ray and has no token to show could otherwise run code as you.
RAY_AUTH_TOKEN=$(python -c "import secrets; print(secrets.token_hex(32))")
head=$(python -c "import ray; print(ray.util.get_node_ip_address())")  # of this node, the first
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=300
# Starts Ray on every node, runs the search on the first one, and ends Ray.
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    ray symmetric-run --address="$head:6379" --min-nodes="$SLURM_JOB_NUM_NODES" --num-cpus="$SLURM_CPUS_PER_TASK" -- \
    python -m studies.cluster.search --address=auto
