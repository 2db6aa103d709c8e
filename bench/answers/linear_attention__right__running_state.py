import torch


class _Memory:
    """What has been written so far: sum of phi(k) v^T and sum of phi(k)."""

    def __init__(self):
        self.table, self.mass = 0.0, 0.0

    def write(self, feature, value):
        self.table = self.table + torch.outer(feature, value)
        self.mass = self.mass + feature

    def read(self, feature):
        return feature.matmul(self.table) / feature.dot(self.mass)


def linear_attention(Q, K, V, phi, causal=False):
    memory = _Memory()
    asked, offered = phi(Q), phi(K)
    if not causal:
        for f, v in zip(offered, V):
            memory.write(f, v)
        return torch.stack([memory.read(f) for f in asked])
    rows = []
    for a, f, v in zip(asked, offered, V):
        memory.write(f, v)
        rows.append(memory.read(a))
    return torch.stack(rows)
