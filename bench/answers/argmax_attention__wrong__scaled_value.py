import torch
def argmax_attention(q, K, V):
    s = K @ q
    j = s.argmax()
    return V[j] * s.softmax(0)[j]
