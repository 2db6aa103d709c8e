import torch
def lstm_forward(X, h0, c0, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c):
    T = X.shape[0]
    H = torch.zeros(T, h0.shape[0], dtype=X.dtype, device=X.device)
    C = torch.zeros(T, h0.shape[0], dtype=X.dtype, device=X.device)
    h, c = h0.clone(), c0.clone()
    for t in range(T):
        f = torch.sigmoid(X[t] @ W_f + h @ U_f + b_f)
        i = torch.sigmoid(X[t] @ W_i + h @ U_i + b_i)
        o = torch.sigmoid(X[t] @ W_o + h @ U_o + b_o)
        c = f * c + i * torch.tanh(X[t] @ W_c + h @ U_c + b_c)
        h = o * torch.tanh(c)
        H[t], C[t] = h, c
    return H, C
