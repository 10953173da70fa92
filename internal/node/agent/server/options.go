package server

import (
	"context"
	"crypto/tls"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// Options are the sources of what the server serves.
type Options struct {
	// NodeName is the node whose subresources callers must be allowed to use.
	NodeName string
	// Client reviews tokens and access at the API server.
	Client kubernetes.Interface
	// Authorities are the CAs of accepted client certificates. See ClusterAuthorities.
	Authorities Authorities
	// Certificate is the server's. See KeepCertificate.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)

	// Pods are the pods of this node, including static ones, with their statuses as the agent knows
	// them; of two of one name, the one that is meant by it comes first. They must not be changed.
	Pods func() []*v1.Pod
	// Runtime is the container runtime.
	Runtime Runtime
	// LogDir is the folder in which every pod has one for its logs: <namespace>_<name>_<uid>.
	LogDir string

	// Healthy are the checks of /healthz by name; an error fails it.
	Healthy map[string]func() error
	// Config is what /configz shows as "kubeletconfig": plain data with kubelet's names. nil: not
	// served.
	Config func() any
	// Stats answers /stats/summary. nil: not served.
	Stats Stats
	// Metrics are what Prometheus reads, by path: "/metrics", "/metrics/resource",
	// "/metrics/cadvisor", "/metrics/probes".
	Metrics map[string]prometheus.Gatherer

	limits limits
}

// Runtime is the part of CRI that is needed; the RuntimeService of k8s.io/cri-api has it.
type Runtime interface {
	ContainerStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.ContainerStatusResponse, error)
	ListPodSandbox(ctx context.Context, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error)
	Exec(ctx context.Context, request *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error)
	Attach(ctx context.Context, request *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error)
	PortForward(ctx context.Context, request *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error)
}

// Stats are the numbers of the node and its pods.
type Stats interface {
	// Summary is as of now or a few seconds ago; cpuAndMemory leaves out the rest.
	Summary(ctx context.Context, cpuAndMemory bool) (*stats.Summary, error)
}

func (o *Options) validate() error {
	switch {
	case o.NodeName == "":
		return fmt.Errorf("server: NodeName must be set")
	case o.Client == nil, o.Authorities == nil, o.Certificate == nil, o.Pods == nil, o.Runtime == nil, o.LogDir == "":
		return fmt.Errorf("server: Client, Authorities, Certificate, Pods, Runtime and LogDir must be set")
	}
	return nil
}
