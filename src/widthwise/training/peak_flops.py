"""Peak FLOPs per second of GPUs."""

PEAK_BF16_FLOPS_PER_SECOND = {
    "A100": 312e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H200": 989e12,
    "GH200": 989e12,
    "B200": 2250e12,
    "L4": 121e12,
    "L40S": 362e12,
    "A10": 125e12,
}
"""Words of a GPU's name -> dense bf16 peak by NVIDIA's data sheets; of two that fit, the first holds."""


def peak_flops_per_second(gpu_name: str) -> float | None:
    """bf16 peak without sparsity; None for a GPU that is not in the table."""
    words = set(gpu_name.replace("-", " ").split())
    return next((peak for name, peak in PEAK_BF16_FLOPS_PER_SECOND.items() if set(name.split()) <= words), None)
