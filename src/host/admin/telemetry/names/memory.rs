//! Names of `/knet/stack/mem_stat` and `/knet/stack/pbuf_stat`.
//!
//! `InitMem` is what a module has taken, `FreeMem` what of it nobody uses. K-NET's modules are not here; those stand for
//! something that have a like of it: Pbuf for the port's buffers, Shm for the pages of the channel, Socket for the rings of
//! the connections, Tcp for the engine's send buffers.

use super::Name;

/// `/knet/stack/mem_stat`, in bytes
pub(in super::super) const MEMORY: &[Name] = &[
    ("InitInitMem", &[]),
    ("InitFreeMem", &[]),
    ("CpdInitMem", &[]),
    ("CpdFreeMem", &[]),
    ("DebugInitMem", &[]),
    ("DebugFreeMem", &[]),
    ("NetdevInitMem", &[]),
    ("NetdevFreeMem", &[]),
    ("NamespaceInitMem", &[]),
    ("NamespaceFreeMem", &[]),
    ("PbufInitMem", &["port.buffer_bytes"]),
    ("PbufFreeMem", &["port.buffer_bytes_free"]),
    ("PmgrInitMem", &[]),
    ("PmgrFreeMem", &[]),
    ("ShmInitMem", &["now.channel_bytes"]),
    ("ShmFreeMem", &[]),
    ("TbmInitMem", &[]),
    ("TbmFreeMem", &[]),
    ("UtilsInitMem", &[]),
    ("UtilsFreeMem", &[]),
    ("WorkerInitMem", &[]),
    ("WorkerFreeMem", &[]),
    ("FdInitMem", &[]),
    ("FdFreeMem", &[]),
    ("EpollInitMem", &[]),
    ("EpollFreeMem", &[]),
    ("PollInitMem", &[]),
    ("PollFreeMem", &[]),
    ("SelectInitMem", &[]),
    ("SelectFreeMem", &[]),
    ("SocketInitMem", &["now.ring_bytes"]),
    ("SocketFreeMem", &[]),
    ("NetlinkInitMem", &[]),
    ("NetlinkFreeMem", &[]),
    ("EthInitMem", &[]),
    ("EthFreeMem", &[]),
    ("IpInitMem", &[]),
    ("IpFreeMem", &[]),
    ("Ip6InitMem", &[]),
    ("Ip6FreeMem", &[]),
    ("TcpInitMem", &["now.send_buffer_bytes"]),
    ("TcpFreeMem", &["now.send_buffer_bytes_free"]),
    ("UdpInitMem", &[]),
    ("UdpFreeMem", &[]),
];

/// `/knet/stack/pbuf_stat`: bytes lie in rings, not in chained buffers, so they are counted in segments of their connections
pub(in super::super) const BUFFERS: &[Name] = &[
    ("ipFragPktNum", &[]),
    ("tcpReassPktNum", &[]),
    ("sendBufPktNum", &["flows.segments_to_send"]),
    ("recvBufPktNum", &["flows.segments_to_read"]),
];
