import math
import torch
import torch.nn as nn
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super(MultiHeadAttention, self).__init__()
        self.d_model, self.num_heads = d_model, num_heads
        self.d_k = d_model // num_heads
        self.d_v = 2 * self.d_k
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, self.d_v * num_heads)
        self.W_o = nn.Linear(self.d_v * num_heads, d_model)
    def scaled_dot_product_attention(self, Q, K, V, mask=None):
        attn_scores = torch.matmul(Q, K.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            attn_scores = attn_scores.masked_fill(mask == 0, -1e9)
        attn_probs = torch.softmax(attn_scores, dim=-1)
        return torch.matmul(attn_probs, V)
    def split_heads(self, x):
        batch_size, seq_length, width = x.size()
        return x.view(batch_size, seq_length, self.num_heads, width // self.num_heads).transpose(1, 2)
    def combine_heads(self, x):
        batch_size, _, seq_length, d_v = x.size()
        return x.transpose(1, 2).contiguous().view(batch_size, seq_length, self.num_heads * d_v)
    def forward(self, Q, K, V, mask=None):
        Q, K, V = self.split_heads(self.W_q(Q)), self.split_heads(self.W_k(K)), self.split_heads(self.W_v(V))
        return self.W_o(self.combine_heads(self.scaled_dot_product_attention(Q, K, V, mask)))
