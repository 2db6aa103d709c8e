"""Mistakes that every multi-head exercise knows, as edits of lines that their first right variants share."""

from __future__ import annotations

from regard.exercises.spec import Mistake

SCALED = "scores = scores / math.sqrt(q.shape[-1])"
AXIS = "weights = torch.softmax(scores, dim=-1)"
SPLIT = "x = x.reshape(B, T, self.num_heads, -1)\n        return x.transpose(1, 2)"
COMBINE = "x = x.transpose(1, 2)\n        return x.reshape(B, T, -1)"

SCALE_PLACE = "Look at the number that the scores are divided by."

SCALE_MISTAKES = (
    Mistake(
        "attention without its scale",
        (
            "The weights are sharper than they should be, the more so the wider a head is.",
            "Look at what happens to the scores between the product and the softmax.",
            "The dot product of two vectors of n numbers varies with n, and nothing evens that out.",
            "Divide the scores by the square root of the width of a head's queries.",
        ),
        edits=((SCALED, "scores = scores"),),
    ),
    Mistake(
        "scaled by the model's width instead of the head's",
        (
            "The weights are flatter than they should be.",
            SCALE_PLACE,
            "A score sums over the numbers of one head's query, and you divide by the root of a "
            "larger count.",
            "Divide by the square root of the width of q after the split.",
        ),
        edits=((SCALED, "scores = scores / math.sqrt(self.W_q.in_features)"),),
    ),
    Mistake(
        "divided by the head's width instead of its square root",
        (
            "The weights are flatter than they should be.",
            SCALE_PLACE,
            "The standard deviation of a score grows with the root of the width, not with the width.",
            "Divide by math.sqrt of the width.",
        ),
        edits=((SCALED, "scores = scores / q.shape[-1]"),),
    ),
    Mistake(
        "multiplied by the scale instead of divided",
        (
            "Nearly all weight lies on one key.",
            SCALE_PLACE,
            "The scores grow where they should shrink.",
            "Divide by the square root, or multiply by width ** -0.5.",
        ),
        edits=((SCALED, "scores = scores * math.sqrt(q.shape[-1])"),),
    ),
)

AXIS_MISTAKES = (
    Mistake(
        "softmax over the queries instead of the keys",
        (
            "A query's weights do not sum to 1; those that a key receives do.",
            "Look at the axis of the softmax.",
            "The scores are (..., query, key), and the second axis from the end runs over queries.",
            "Take the softmax over the last axis.",
        ),
        edits=((AXIS, "weights = torch.softmax(scores, dim=-2)"),),
    ),
    Mistake(
        "softmax over the heads instead of the keys",
        (
            "For one query and key the weights of all heads sum to 1.",
            "Look at the axis of the softmax.",
            "Axis 1 of (batch, heads, query, key) runs over the heads.",
            "Take the softmax over the last axis.",
        ),
        edits=((AXIS, "weights = torch.softmax(scores, dim=1)"),),
    ),
    Mistake(
        "no softmax",
        (
            "Weights are negative, and do not sum to 1.",
            "Look at what lies between scores and values.",
            "The scores themselves multiply the values.",
            "Take the softmax of the scores over the keys.",
        ),
        edits=((AXIS, "weights = scores"),),
    ),
)

HEAD_MISTAKES = (
    Mistake(
        "heads cut by `view` without a transpose",
        (
            "A head mixes tokens: its first row holds pieces of several positions.",
            "Look at how the heads are split.",
            "Reshaping (batch, T, heads * width) straight to (batch, heads, T, width) cuts the row "
            "of numbers "
            "at other places.",
            "Reshape to (batch, T, heads, width) first, then swap axes 1 and 2.",
        ),
        edits=((SPLIT, "return x.reshape(B, self.num_heads, T, -1)"),),
    ),
    Mistake(
        "heads joined without a transpose",
        (
            "Each output row holds one head's results for several positions.",
            "Look at how the heads are put together again.",
            "Reshaping (batch, heads, T, width) straight to (batch, T, heads * width) keeps the "
            "order of heads first.",
            "Swap axes 1 and 2, then reshape.",
        ),
        edits=((COMBINE, "return x.reshape(B, T, -1)"),),
    ),
    Mistake(
        "a head takes every n-th number instead of neighbouring ones",
        (
            "The heads have the right shape and the wrong numbers in them.",
            "Look at the order of heads and width in the reshape.",
            "With (width, heads) in place of (heads, width), head 0 gets numbers 0, n, 2n, ...",
            "Reshape to (batch, T, heads, width): the head is the slower axis.",
        ),
        edits=((SPLIT, "x = x.reshape(B, T, -1, self.num_heads)\n        return x.permute(0, 3, 1, 2)"),),
    ),
    Mistake(
        "heads joined number by number",
        (
            "The output projection meets the heads' numbers in another order.",
            "Look at how the heads are put together again.",
            "The first number of each head comes first, then the second of each: head and width are swapped.",
            "Join to (batch, T, heads, width) before the last two axes become one.",
        ),
        edits=((COMBINE, "x = x.permute(0, 2, 3, 1)\n        return x.reshape(B, T, -1)"),),
    ),
)

INPUT_MISTAKES = (
    Mistake(
        "`W_q` and `W_k` swapped",
        (
            "The weights are wrong though every shape is right.",
            "Look at which layer each input goes through.",
            "The queries go through the keys' layer and the keys through the queries'.",
            "W_q is for Q, W_k for K.",
        ),
        edits=(("self.W_q(Q)", "self.W_k(Q)"), ("self.W_k(K)", "self.W_q(K)")),
    ),
    Mistake(
        "values taken from K instead of V",
        (
            "Right for self-attention, wrong where keys and values are different tensors.",
            "Look at what goes through W_v.",
            "K is projected twice, and V is never used.",
            "Project V with W_v.",
        ),
        edits=(("self.W_v(V)", "self.W_v(K)"),),
    ),
    Mistake(
        "keys taken from Q instead of K",
        (
            "Right for self-attention, wrong or an error for cross-attention.",
            "Look at what goes through W_k.",
            "The queries are compared with themselves.",
            "Project K with W_k.",
        ),
        edits=(("self.W_k(K)", "self.W_k(Q)"),),
    ),
    Mistake(
        "keys are not projected by `W_k`",
        (
            "The gradient never reaches W_k.",
            "Look at which layers are used in forward.",
            "The keys go through W_q, so W_k is never used.",
            "Project K with W_k.",
        ),
        edits=(("self.W_k(K)", "self.W_q(K)"),),
    ),
    Mistake(
        "the output projection is left out",
        (
            "W_o has no effect on the result.",
            "Look at the last line of forward.",
            "The joined heads are returned as they are.",
            "Return W_o of the joined heads.",
        ),
        edits=(("out = self.W_o(joined)", "out = joined"),),
    ),
    Mistake(
        "a residual nobody asked for",
        (
            "The result is the right one plus the input.",
            "Look at the last line of forward.",
            "Q is added to the output; that is the block's business, not the attention's.",
            "Return W_o of the joined heads alone.",
        ),
        edits=(("out = self.W_o(joined)", "out = self.W_o(joined) + Q"),),
    ),
    Mistake(
        "the gradient is cut at the weights",
        (
            "The output is right, but no gradient reaches W_q and W_k.",
            "Look for detach, .data, .item() or no_grad.",
            "Detached weights are constants to autograd.",
            "Use the weights as they come out of the softmax.",
        ),
        edits=(("heads = weights @ v", "heads = weights.detach() @ v"),),
    ),
)

# The likeliest first: pairs of two mistakes are tried in this order, and not all of them.
PLAIN = (*HEAD_MISTAKES[:2], *SCALE_MISTAKES, *AXIS_MISTAKES, *HEAD_MISTAKES[2:])
COMMON = (*PLAIN, *INPUT_MISTAKES)

# For layers that take a mask.
MASKED = "scores = scores.masked_fill(mask == 0, -1e4)"
MASK_PLACE = "Look at the line that applies the mask."

MASK_MISTAKES = (
    Mistake(
        "the mask is ignored",
        (
            "Hidden keys get weight.",
            "Look at what forward does with mask.",
            "The scores go into the softmax unmasked.",
            "Set the scores where mask == 0 to -inf before the softmax.",
        ),
        edits=((MASKED, "scores = scores"),),
    ),
    Mistake(
        "the mask is upside down",
        (
            "The weight lies on the hidden keys.",
            MASK_PLACE,
            "0 means hidden here, and the keys with 1 are hidden.",
            "Hide where mask == 0.",
        ),
        edits=((MASKED, "scores = scores.masked_fill(mask != 0, -1e4)"),),
    ),
    Mistake(
        "a mask for each sequence lined up with the heads",
        (
            "With as many sequences as heads, head i uses sequence i's mask; else it is an error.",
            "Look at the axes of a (batch, Lq, Lk) mask beside scores of (batch, heads, Lq, Lk).",
            "Broadcasting aligns axes from the right, so the mask's batch meets the heads.",
            "Give the mask an axis for the heads: mask.unsqueeze(1).",
        ),
        edits=(("mask = mask.unsqueeze(1)", "mask = mask"),),
    ),
    Mistake(
        "a mask for all sequences lined up with the heads",
        (
            "With as many queries as heads, head i uses query i's row of the mask; else it is an error.",
            "Look at the axes of a (Lq, Lk) mask beside scores of (batch, heads, Lq, Lk).",
            "unsqueeze(1) makes it (Lq, 1, Lk), whose first axis meets the heads.",
            "A (Lq, Lk) mask broadcasts as it is; only a (batch, Lq, Lk) one needs an axis for the heads.",
        ),
        edits=(("if mask is not None and mask.dim() == 3:", "if mask is not None:"),),
    ),
    Mistake(
        "`repeat` instead of `repeat_interleave` over the heads",
        (
            "Sequence 1 is using sequence 0's mask in some of its heads.",
            "Look at how one mask per sequence becomes one per sequence and head.",
            "`repeat` gives a, b, a, b; with heads as the faster axis the order is a, a, b, b.",
            "Use repeat_interleave, or give the mask an axis of 1 for the heads.",
        ),
        edits=(
            (
                "mask = mask.unsqueeze(1)",
                "mask = mask.repeat(self.num_heads, 1, 1).unflatten(0, (-1, self.num_heads))",
            ),
        ),
    ),
    Mistake(
        "every sequence uses the first one's mask",
        (
            "Sequence 1 is using sequence 0's mask.",
            "Look at what becomes of a (batch, Lq, Lk) mask.",
            "Only the first table is taken.",
            "Keep the batch axis and add one for the heads: mask.unsqueeze(1).",
        ),
        edits=(("mask = mask.unsqueeze(1)", "mask = mask[0]"),),
    ),
    Mistake(
        "masked after the softmax",
        (
            "Rows with hidden keys sum to less than 1.",
            "Look at the order of mask and softmax.",
            "The hidden keys are zeroed only after they took their share of the sum.",
            "Hide the scores with -inf first, then take the softmax.",
        ),
        edits=(
            (MASKED, "scores = scores"),
            (
                "heads = weights @ v",
                "weights = weights if mask is None else weights.masked_fill(mask == 0, 0.0)\n"
                "        heads = weights @ v",
            ),
        ),
    ),
    Mistake(
        "hidden scores are set to 0 instead of -inf",
        (
            "Hidden keys get the weight of a score of 0.",
            MASK_PLACE,
            "exp(0) is 1: a score of 0 (or a score multiplied by the mask) hides nothing.",
            "Use -inf, or a large negative number.",
        ),
        edits=((MASKED, "scores = scores.masked_fill(mask == 0, 0.0)"),),
    ),
    Mistake(
        "the mask is added to the scores",
        (
            "Hidden keys still get weight, a bit less than the others.",
            MASK_PLACE,
            "Adding 1 to what is visible only multiplies its weight by e.",
            "Fill the scores with -inf where mask == 0.",
        ),
        edits=((MASKED, "scores = scores + mask"),),
    ),
    Mistake(
        "hidden scores are set to -1",
        (
            "Hidden keys get less weight, not none.",
            MASK_PLACE,
            "exp(-1) is about 0.37: still a good part of the sum.",
            "Use -inf, or a large negative number such as -1e9.",
        ),
        edits=((MASKED, "scores = scores.masked_fill(mask == 0, -1.0)"),),
    ),
    Mistake(
        "only the first head is masked",
        (
            "All heads but one look at hidden keys.",
            MASK_PLACE,
            "The mask reaches head 0 alone.",
            "Let the mask broadcast over the heads.",
        ),
        edits=(
            (
                MASKED,
                "scores = torch.cat([scores[:, :1].masked_fill(mask == 0, -1e4), scores[:, 1:]], 1)",
            ),
        ),
    ),
    Mistake(
        "no mask is taken for a causal one",
        (
            "Without a mask, later keys are hidden.",
            "Look at what happens when mask is None.",
            "A lower triangle is made where nothing should be hidden.",
            "Leave the scores alone when mask is None.",
        ),
        edits=(
            (
                SCALED,
                SCALED
                + "\n        if mask is None:\n            mask = torch.ones_like(scores[0, 0]).tril()",
            ),
        ),
    ),
)
