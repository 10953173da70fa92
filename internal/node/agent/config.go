package agent

import (
	"net"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/cpuset"

	"github.com/berth-k8s/berth/internal/node/agent/cpus"
	"github.com/berth-k8s/berth/internal/node/agent/memory"
	"github.com/berth-k8s/berth/internal/node/agent/pressure"
	"github.com/berth-k8s/berth/internal/node/agent/pulls"
	"github.com/berth-k8s/berth/internal/node/agent/shutdown"
	"github.com/berth-k8s/berth/internal/node/agent/topology"
)

// Config is an agent's configuration. Fields are named after the kubelet's flags.
type Config struct {
	NodeName string
	// NodeIPs are the node's addresses; the primary first. Empty: those of the interface with the
	// default route.
	NodeIPs []net.IP
	Labels  map[string]string
	Taints  []v1.Taint

	RuntimeEndpoint string
	RootDir         string
	PodLogDir       string
	StaticPodPath   string
	FileCheck       time.Duration

	// Address is where the kubelet's API is served. Nil: at the primary of NodeIPs, which is the
	// one that others use.
	Address net.IP
	Port    int
	// HealthzAddress and HealthzPort are where /healthz is served, without authentication; port 0:
	// nowhere.
	HealthzAddress net.IP
	HealthzPort    int
	// TLSCert and TLSKey are files; empty: the agent makes its own certificate below RootDir.
	TLSCert, TLSKey string
	ClientCA        string

	MaxPods int
	// CPUs is the number that the node reports; 0: the machine's.
	CPUs int
	// Memory is what the node reports, in bytes; 0: the machine's, or CgroupRoot's.
	Memory         int64
	PodPIDs        int64
	KubeReserved   v1.ResourceList
	SystemReserved v1.ResourceList
	// ReservedCPUs are kept from containers with CPUs of their own; empty: as many as are reserved.
	ReservedCPUs cpuset.CPUSet
	// CPUPolicy is cpus.Static if containers can have CPUs of their own; empty: they cannot.
	CPUPolicy  string
	CPUOptions cpus.Options
	// MemoryPolicy is memory.Static if containers have memory of certain NUMA nodes; empty: of any.
	MemoryPolicy string
	// ReservedMemory is what of each NUMA node is kept from them.
	ReservedMemory memory.Reserved
	// Alignment is from which NUMA nodes a container's resources come.
	Alignment    topology.Alignment
	CgroupRoot   string
	CgroupDriver string

	// PodAPIServer is where pods find the API server. Zero: at the address of the Service
	// kubernetes.
	PodAPIServer netip.AddrPort

	ClusterDNS    []string
	ClusterDomain string
	ResolvConf    string

	// Eviction configures when the node is under pressure.
	Eviction pressure.Config

	// ImagePulls is the policy on which images pods need credentials for.
	ImagePulls pulls.Policy

	// Shutdown is how much time pods get when the machine is shut down; none: they are not
	// terminated.
	Shutdown shutdown.Periods

	StatusUpdate  time.Duration
	StatusReport  time.Duration
	LeaseDuration time.Duration
	LogMaxSize    int64
	LogMaxFiles   int

	// Version is the kubelet version that the node reports.
	Version string
}

// DefaultConfig has the kubelet's defaults, except for folders: Berth has its own, so that both can
// be used on a machine.
func DefaultConfig() Config {
	return Config{
		RuntimeEndpoint: "unix:///run/containerd/containerd.sock",
		RootDir:         "/var/lib/berth-agent",
		PodLogDir:       "/var/log/pods",
		FileCheck:       time.Second,
		Port:            10250,
		HealthzAddress:  net.IPv4(127, 0, 0, 1),
		HealthzPort:     10248,
		MaxPods:         110,
		PodPIDs:         -1,
		CgroupDriver:    "cgroupfs",
		ClusterDomain:   "cluster.local",
		ResolvConf:      "/etc/resolv.conf",
		Eviction:        pressure.DefaultConfig(),
		StatusUpdate:    10 * time.Second,
		StatusReport:    5 * time.Minute,
		LeaseDuration:   40 * time.Second,
		LogMaxSize:      10 << 20,
		LogMaxFiles:     5,
	}
}
