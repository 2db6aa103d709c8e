import torch

def lstm_forward(X, h0, c0, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c):
    T = X.shape[0]
    H = []
    C = []
    h = h0
    c = c0
    for t in range(T):
        x = X[t]
        forget = torch.sigmoid(torch.matmul(x, W_f) + torch.matmul(h, U_f) + b_f)
        enter = torch.sigmoid(torch.matmul(x, W_i) + torch.matmul(h, U_i) + b_i)
        leave = torch.sigmoid(torch.matmul(x, W_o) + torch.matmul(h, U_o) + b_o)
        new = torch.tanh(torch.matmul(x, W_c) + torch.matmul(h, U_c) + b_c)
        c = forget * c + enter * new
        h = leave * torch.tanh(c)
        H.append(h)
        C.append(c)
    return torch.stack(H, dim=0), torch.stack(C, dim=0)
