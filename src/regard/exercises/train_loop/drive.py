import torch
from torch import nn


class Model(nn.Module):
    """Logits from the mean of the tokens so far; in train mode always the same half is dropped."""

    def __init__(self, embedding, head):
        super().__init__()
        self.embedding, self.head = nn.Parameter(embedding.clone()), nn.Parameter(head.clone())

    def forward(self, tokens):
        x = self.embedding[tokens].cumsum(1) / torch.arange(1, tokens.shape[1] + 1)[:, None]
        kept = torch.arange(x.shape[-1]) % 2 == 0
        return torch.tanh(2 * x * kept if self.training else x) @ self.head.T


def drive(answer, what, embedding, head, batches, *rest):
    """Losses and weights after training, which begins in eval mode; or a loss and the mode after it."""
    model = Model(embedding, head)
    if what.startswith("evaluate"):
        model.train(what == "evaluate")
        loss = answer.evaluate_lm(model, batches, *rest)
        return torch.as_tensor(float(loss)), model.training
    model.eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = answer.train_lm(model, optimizer, batches, *rest)
    return torch.tensor([float(loss) for loss in losses]), model.embedding.detach(), model.head.detach()
