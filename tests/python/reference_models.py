"""ddprun's models as PyTorch modules: the same parameter names, the same function, and from the same seed the same
initial weights, bit for bit. What worker/model/models/ has is compared with these.

Initial weights come from the CPU generator after torch.manual_seed(train.seed), in the order of the draws:
- simple_cnn: conv (weight, bias), then fc (weight, bias), each as torch.nn.Conv2d and torch.nn.Linear draw theirs.
- resnet18, resnet50: torchvision's. While the modules are constructed, each convolution and fc draws its default values: conv1,
  then block by block (the downsample of a block before its other convolutions), fc (weight, bias) at the end. Then every
  convolution is drawn again, kaiming_normal_(mode="fan_out", nonlinearity="relu"), in the order of modules() (the downsample of
  a block after its other convolutions). The first draws of convolutions are thrown away, but move the generator on.
- bert, gpt: one draw for each parameter of at least two dimensions, normal(0, deviation), in the order of parameters();
  nothing else is drawn. Deviation 0.02, in gpt 0.02 / sqrt(2 · layers) for the two c_proj.weight of a block. Norms begin
  with 1 and 0, biases with 0.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


class SimpleCnn(nn.Module):
    """28×28 grey images, 10 classes."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 32, 3)
        self.fc = nn.Linear(32 * 13 * 13, 10)

    def forward(self, images):
        return self.fc(torch.flatten(F.max_pool2d(F.relu(self.conv(images)), 2), 1))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, inputs, planes, stride, downsample):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        if downsample is not None:
            self.downsample = downsample

    def forward(self, x):
        shortcut = self.downsample(x) if hasattr(self, "downsample") else x
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + shortcut)


class Bottleneck(nn.Module):
    """1×1, 3×3 (which has the stride), 1×1 beside a shortcut."""

    expansion = 4

    def __init__(self, inputs, planes, stride, downsample):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, 4 * planes, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * planes)
        if downsample is not None:
            self.downsample = downsample

    def forward(self, x):
        shortcut = self.downsample(x) if hasattr(self, "downsample") else x
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        return F.relu(self.bn3(self.conv3(out)) + shortcut)


class ResNet(nn.Module):
    """torchvision's ResNet (v1.5); with stem "cifar" a 3×3 convolution of stride 1 and no pooling for images of up to 64 pixels."""

    def __init__(self, block, blocks, classes=1000, stem="imagenet", channels=3):
        super().__init__()
        self.inputs = 64
        self.stem = stem
        size, stride, padding = (3, 1, 1) if stem == "cifar" else (7, 2, 3)
        self.conv1 = nn.Conv2d(channels, 64, size, stride, padding, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = self._layer(block, 64, blocks[0], 1)
        self.layer2 = self._layer(block, 128, blocks[1], 2)
        self.layer3 = self._layer(block, 256, blocks[2], 2)
        self.layer4 = self._layer(block, 512, blocks[3], 2)
        self.fc = nn.Linear(512 * block.expansion, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def _layer(self, block, planes, count, stride):
        downsample = None
        outputs = planes * block.expansion
        if stride != 1 or self.inputs != outputs:
            downsample = nn.Sequential(nn.Conv2d(self.inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        layers = [block(self.inputs, planes, stride, downsample)]
        self.inputs = outputs
        layers += [block(outputs, planes, 1, None) for _ in range(1, count)]
        return nn.Sequential(*layers)

    def forward(self, images):
        x = F.relu(self.bn1(self.conv1(images)))
        if self.stem != "cifar":
            x = F.max_pool2d(x, 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


def attention(qkv, heads, causal, dropout):
    """Scaled dot product attention of {batch, time, 3·d}, which holds q, k and v one after the other."""
    batch, time, width = qkv.shape
    q, k, v = qkv.view(batch, time, 3, heads, width // 3 // heads).permute(2, 0, 3, 1, 4)
    out = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=causal)
    return out.transpose(1, 2).reshape(batch, time, width // 3)


class BertEmbedding(nn.Module):
    """Token + position, normalised."""

    def __init__(self, vocab, d_model, time):
        super().__init__()
        self.token = nn.Embedding(vocab, d_model)
        self.position = nn.Embedding(time, d_model)
        self.norm = nn.LayerNorm(d_model)

    def forward(self, tokens):
        return self.norm(self.token(tokens) + self.position.weight[: tokens.size(1)])


class BertLayer(nn.Module):
    """Attention and feed-forward, each added to its input and normalised after it."""

    def __init__(self, d_model, heads, d_ff, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.o = nn.Linear(d_model, d_model)
        self.n1 = nn.LayerNorm(d_model)
        self.f1 = nn.Linear(d_model, d_ff)
        self.f2 = nn.Linear(d_ff, d_model)
        self.n2 = nn.LayerNorm(d_model)

    def drop(self, x):
        return F.dropout(x, self.dropout, self.training)

    def forward(self, x):
        mixed = attention(self.qkv(x), self.heads, False, self.dropout if self.training else 0.0)
        x = self.n1(x + self.drop(self.o(mixed)))
        return self.n2(x + self.drop(self.f2(F.gelu(self.f1(x)))))


class Bert(nn.Module):
    """Encoder with a score for each word at each place: {batch, time} → {batch, time, vocabulary}."""

    def __init__(self, vocab_size=30522, d_model=1024, heads=16, layers=24, d_ff=0, sequence_length=512, dropout=0.0):
        super().__init__()
        self.dropout = dropout
        self.embedding = BertEmbedding(vocab_size, d_model, sequence_length)
        self.layers = nn.ModuleList(BertLayer(d_model, heads, d_ff or 4 * d_model, dropout) for _ in range(layers))
        self.head = nn.Linear(d_model, vocab_size)

    def forward(self, tokens):
        x = F.dropout(self.embedding(tokens), self.dropout, self.training)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

    def deviation(self, _):
        return 0.02


class GptAttention(nn.Module):
    def __init__(self, d_model, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.c_attn = nn.Linear(d_model, 3 * d_model)
        self.c_proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        mixed = attention(self.c_attn(x), self.heads, True, self.dropout if self.training else 0.0)
        return F.dropout(self.c_proj(mixed), self.dropout, self.training)


class GptMlp(nn.Module):
    def __init__(self, d_model, d_ff, dropout):
        super().__init__()
        self.dropout = dropout
        self.c_fc = nn.Linear(d_model, d_ff)
        self.c_proj = nn.Linear(d_ff, d_model)

    def forward(self, x):
        return F.dropout(self.c_proj(F.gelu(self.c_fc(x))), self.dropout, self.training)


class GptBlock(nn.Module):
    """Attention and feed-forward, each on the normalised input and added to it."""

    def __init__(self, d_model, heads, d_ff, dropout):
        super().__init__()
        self.ln_1 = nn.LayerNorm(d_model)
        self.attn = GptAttention(d_model, heads, dropout)
        self.ln_2 = nn.LayerNorm(d_model)
        self.mlp = GptMlp(d_model, d_ff, dropout)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """Decoder; the scores are products with the token embedding: lm_head.weight is wte.weight, one parameter."""

    def __init__(self, vocab_size=50257, d_model=768, heads=12, layers=12, d_ff=0, sequence_length=1024, dropout=0.0):
        super().__init__()
        self.dropout, self.residual_deviation = dropout, 0.02 / math.sqrt(2 * layers)
        self.wte = nn.Embedding(vocab_size, d_model)
        self.wpe = nn.Embedding(sequence_length, d_model)
        self.h = nn.ModuleList(GptBlock(d_model, heads, d_ff or 4 * d_model, dropout) for _ in range(layers))
        self.ln_f = nn.LayerNorm(d_model)
        self.lm_head = nn.Linear(d_model, vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[: tokens.size(1)]
        x = F.dropout(x, self.dropout, self.training)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))

    def deviation(self, name):
        return self.residual_deviation if name.endswith("c_proj.weight") else 0.02


def draw_once(kind, **options):
    """A Bert or Gpt whose weights are drawn as the head of this file says, without the draws of PyTorch's own constructors."""
    with torch.device("meta"):
        shape_only = kind(**options)
    model = shape_only.to_empty(device="cpu")
    if kind is Gpt:
        model.lm_head.weight = model.wte.weight  # to_empty makes two of them
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, model.deviation(name))
            else:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
    return model


def make(name, **options):
    """The model of this name; options are its constructor's. Seed the generator before."""
    if name == "simple_cnn":
        return SimpleCnn(**options)
    if name == "resnet18":
        return ResNet(BasicBlock, [2, 2, 2, 2], **options)
    if name == "resnet50":
        return ResNet(Bottleneck, [3, 4, 6, 3], **options)
    return draw_once({"bert": Bert, "gpt": Gpt}[name], **options)


def load_weights(model, tensors):
    """load_state_dict(strict=True), with the second name of a tied parameter added where it is missing."""
    tensors = dict(tensors)
    if isinstance(model, Gpt):
        tensors.setdefault("lm_head.weight", tensors["wte.weight"])
    model.load_state_dict(tensors, strict=True)


def loss(output, targets, label_smoothing=0.0):
    """Mean over the targets that count (not −100): classes {batch, classes}, or tokens {batch, time, vocabulary}."""
    return F.cross_entropy(output.float().flatten(0, -2), targets.flatten(), label_smoothing=label_smoothing)
