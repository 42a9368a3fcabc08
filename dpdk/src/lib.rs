//! libknet_dpdk.so: the DPDK plug-in.
