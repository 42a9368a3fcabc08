//! libknet_frame.so: only the exported C symbols; everything they do is in `knet::shim`.
