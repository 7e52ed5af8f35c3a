"""The real engine on a CPU: SmolLM2-135M in fp32 and the drafter that ships with dlite. ``make test-vllm`` runs it."""

from __future__ import annotations

import os

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process, where its drafter can be listened to
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
