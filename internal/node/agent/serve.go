package agent

import (
	"cmp"
	"context"
	"crypto/tls"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/klog/v2"
	kubelet "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-k8s/berth/internal/kube/guard"
	"github.com/berth-k8s/berth/internal/node/agent/cpus"
	"github.com/berth-k8s/berth/internal/node/agent/memory"
	"github.com/berth-k8s/berth/internal/node/agent/metrics"
	"github.com/berth-k8s/berth/internal/node/agent/server"
	"github.com/berth-k8s/berth/internal/node/agent/server/logfile"
	"github.com/berth-k8s/berth/internal/node/agent/topology"
)

// serve serves the kubelet's API until ctx ends.
func (a *Agent) serve(ctx context.Context, listener net.Listener) error {
	authorities, err := server.ClusterAuthorities(server.AuthorityOptions{File: a.config.ClientCA, Client: a.client, Config: a.rest})
	if err != nil {
		return err
	}
	certificate, err := a.certificate()
	if err != nil {
		return err
	}
	asking, err := guard.Client(a.rest)
	if err != nil {
		return err
	}
	s, err := server.New(server.Options{
		NodeName: a.config.NodeName, Client: asking, Authorities: authorities, Certificate: certificate,
		Pods: a.Pods, Runtime: a.runtime.Runtime, LogDir: a.config.PodLogDir,
		Healthy: a.checks(),
		Config:  a.configz,
		Stats:   a.collector,
		Metrics: map[string]prometheus.Gatherer{"/metrics": a.metrics(), "/metrics/resource": a.collector.Resource(), "/metrics/probes": a.prober.Metrics(),
			"/metrics/cadvisor": a.collector.Cadvisor(a.machine.cpus, a.machine.memory)},
	})
	if err != nil {
		return err
	}
	return s.Serve(ctx, listener)
}

// checks are those of /healthz.
func (a *Agent) checks() map[string]func() error {
	out := a.health.checks()
	out["device-plugin"] = a.devices.Check
	return out
}

// certificate is that of the files that are configured or, without any, one that the agent makes
// and keeps.
func (a *Agent) certificate() (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	if a.config.TLSCert != "" {
		return server.CertificateFiles(a.config.TLSCert, a.config.TLSKey)
	}
	return server.KeepCertificate(filepath.Join(a.config.RootDir, "pki"), a.config.NodeName, a.config.NodeIPs)
}

// serveHealthz serves /healthz to anybody on this machine, as the kubelet does. A port that is
// taken does not keep the node from running: it is tried again.
func (a *Agent) serveHealthz(ctx context.Context) {
	if a.config.HealthzPort == 0 {
		return
	}
	at := net.JoinHostPort(a.config.HealthzAddress.String(), strconv.Itoa(a.config.HealthzPort))
	for told := ""; ctx.Err() == nil; {
		listener, err := net.Listen("tcp", at)
		if err == nil {
			err = guard.Serve(ctx, listener, server.Healthz(a.checks()))
		}
		if err != nil && told != err.Error() {
			told = err.Error()
			klog.InfoS("Cannot serve /healthz; it is tried again: choose another --healthz-port, or 0 for none", "address", at, "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(healthzAgain):
		}
	}
}

const healthzAgain = 5 * time.Second

// configz is the configuration under the kubelet's names.
func (a *Agent) configz() any {
	c := a.config
	return map[string]any{
		"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1",
		"staticPodPath": c.StaticPodPath, "fileCheckFrequency": c.FileCheck.String(), "address": c.Address.String(), "port": a.port.Load(),
		"healthzBindAddress": c.HealthzAddress.String(), "healthzPort": c.HealthzPort,
		"maxPods": c.MaxPods, "podPidsLimit": c.PodPIDs, "cgroupRoot": c.CgroupRoot, "cgroupDriver": c.CgroupDriver,
		"clusterDNS": c.ClusterDNS, "clusterDomain": c.ClusterDomain, "resolvConf": c.ResolvConf,
		"containerRuntimeEndpoint": c.RuntimeEndpoint, "kubeReserved": c.KubeReserved, "systemReserved": c.SystemReserved,
		"evictionHard": c.Eviction.Hard, "evictionSoft": c.Eviction.Soft, "evictionSoftGracePeriod": c.Eviction.SoftGrace,
		"evictionMinimumReclaim": c.Eviction.MinimumReclaim, "evictionPressureTransitionPeriod": c.Eviction.Transition.String(),
		"evictionMaxPodGracePeriod": c.Eviction.MaxPodGrace,
		"nodeStatusUpdateFrequency": c.StatusUpdate.String(), "nodeStatusReportFrequency": c.StatusReport.String(),
		"nodeLeaseDurationSeconds": int(c.LeaseDuration.Seconds()),
		"containerLogMaxFiles":     c.LogMaxFiles, "podLogsDir": c.PodLogDir,
		"cpuManagerPolicy": cmp.Or(c.CPUPolicy, cpus.None), "reservedSystemCPUs": c.ReservedCPUs.String(),
		"memoryManagerPolicy": cmp.Or(c.MemoryPolicy, memory.None), "reservedMemory": reservations(c.ReservedMemory),
		"topologyManagerPolicy": cmp.Or(c.Alignment.Policy, topology.None), "topologyManagerScope": cmp.Or(c.Alignment.Scope, topology.ContainerScope),
	}
}

// reservations is the reserved memory in the form of a KubeletConfiguration.
func reservations(reserved memory.Reserved) (out []kubelet.MemoryReservation) {
	for _, node := range slices.Sorted(maps.Keys(reserved)) {
		out = append(out, kubelet.MemoryReservation{NumaNode: int32(node), Limits: reserved[node]})
	}
	return out
}

func (a *Agent) metrics() prometheus.Gatherer {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		metrics.Overhead(a.Pods), a.kubelet)
	return registry
}

func (a *Agent) rotateLogs(ctx context.Context) {
	(&logfile.Rotator{Runtime: a.runtime.Runtime, Dir: a.config.PodLogDir, MaxSize: a.config.LogMaxSize, MaxFiles: a.config.LogMaxFiles}).Run(ctx)
}
