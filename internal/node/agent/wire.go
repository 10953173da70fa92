package agent

import (
	"context"
	"net/netip"
	"os"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-k8s/berth/internal/node/admit"
	"github.com/berth-k8s/berth/internal/node/agent/env"
	"github.com/berth-k8s/berth/internal/node/agent/lifecycle"
	"github.com/berth-k8s/berth/internal/node/agent/probe"
	"github.com/berth-k8s/berth/internal/node/agent/server/logfile"
	"github.com/berth-k8s/berth/internal/node/agent/volumes"
)

// wire creates the components that manage containers.
func (a *Agent) wire(ctx context.Context) {
	options := probe.Options{
		Exec: a.runtime.Runtime,
		Event: func(pod *v1.Pod, container, kind, reason, message string) {
			a.containerEvent(pod, container, kind, reason, message)
		},
		Report: func(uid types.UID) {
			if w := a.pods.get(uid); w != nil {
				w.wake()
			}
		},
	}
	a.prober, a.hooksOf = probe.New(ctx, options), probe.NewHooks(options)
}

// verdicts are those of the probes of running containers. A container that the prober does not know
// yet has none.
func (a *Agent) verdicts(pod *v1.Pod, seen lifecycle.Seen) map[string]lifecycle.Verdict {
	out := map[string]lifecycle.Verdict{}
	for _, c := range seen.Containers {
		spec := containerOf(pod, c.Name)
		if c.State != lifecycle.Running || spec == nil {
			continue
		}
		v := a.prober.Verdicts(lifecycle.ContainerID(c.ID))
		if probed := spec.StartupProbe != nil || spec.ReadinessProbe != nil || spec.LivenessProbe != nil; probed && v == (probe.Verdicts{}) {
			continue
		}
		verdict := lifecycle.Verdict{Started: probe.Started(spec, true, v), Ready: probe.Ready(spec, true, v)}
		if kind, failed := probe.Failed(spec, v); failed {
			verdict.LivenessFailed, verdict.StartupFailed = kind == probe.Liveness, kind == probe.Startup
			grace := probe.Grace(pod, spec, kind)
			verdict.Grace = &grace
		}
		out[c.ID] = verdict
	}
	return out
}

func containerOf(pod *v1.Pod, name string) *v1.Container {
	for _, list := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// handler is the runtime handler of the pod's RuntimeClass.
func (a *Agent) handler(ctx context.Context, pod *v1.Pod) (string, error) {
	if pod.Spec.RuntimeClassName == nil || *pod.Spec.RuntimeClassName == "" {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	class, err := a.client.NodeV1().RuntimeClasses().Get(ctx, *pod.Spec.RuntimeClassName, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return class.Handler, nil
}

// recursiveReadOnly reports whether the runtime can make a mount read-only recursively. For pods
// with a RuntimeClass it is false: one that requires recursion is then rejected, rather than run
// without it.
func (a *Agent) recursiveReadOnly(pod *v1.Pod) bool {
	if pod.Spec.RuntimeClassName != nil && *pod.Spec.RuntimeClassName != "" {
		return false
	}
	h := a.health.told().Handler("")
	return h != nil && *h.Features.RecursiveReadOnlyMounts
}

func (a *Agent) hostname(pod *v1.Pod) (string, error) {
	host, domain, err := env.Hostname(pod, a.config.ClusterDomain)
	if err != nil {
		return "", err
	}
	return env.KernelHostname(pod, host, domain)
}

func (a *Agent) resolver() env.Resolver {
	r := env.Resolver{ClusterDNS: a.config.ClusterDNS, ClusterDomain: a.config.ClusterDomain}
	if file, err := os.Open(a.config.ResolvConf); err == nil {
		defer file.Close()
		r.Host, _ = env.ParseResolvConf(file)
	}
	return r
}

func (a *Agent) process(pod *v1.Pod, c *v1.Container, ips []string) (env.Process, error) {
	return env.Resolve(pod, c, env.Sources{
		ConfigMap: a.objects.ConfigMap, Secret: a.objects.Secret, Services: a.listServices(pod),
		VolumeFile:  func(volume, path string) ([]byte, error) { return a.volumes.File(pod, volume, path) },
		Allocatable: a.allocatable(a.capacity()), HostIPs: a.hostIPs(), PodIPs: ips,
	})
}

func (a *Agent) mounts(pod *v1.Pod, c *v1.Container, process env.Process, ips []string, recursive bool) ([]*runtimeapi.Mount, error) {
	host, domain, err := env.Hostname(pod, a.config.ClusterDomain)
	if err != nil {
		return nil, err
	}
	list, err := a.volumes.Mounts(pod, c, volumes.View{Env: process.Env, PodIPs: ips, Host: host, Domain: domain, RecursiveReadOnly: recursive})
	if err != nil {
		return nil, err
	}
	return criMounts(list), nil
}

func (a *Agent) removeLog(path string) error {
	if path == "" {
		return nil
	}
	return logfile.Remove(a.config.PodLogDir, path)
}

// listServices lists the cluster's Services. A static pod does not wait for the API to list them.
func (a *Agent) listServices(pod *v1.Pod) func() ([]*v1.Service, error) {
	known := a.servicesKnown()
	if !known && admit.Static(pod) {
		return nil
	}
	return func() ([]*v1.Service, error) {
		if !known {
			return nil, env.ErrServicesUnread
		}
		services, err := a.services.List(labels.Everything())
		if a.config.PodAPIServer.IsValid() {
			services = elsewhere(services, a.config.PodAPIServer)
		}
		return services, err
	}
}

// elsewhere replaces the address of the Service kubernetes, which may not be reachable from pods.
func elsewhere(services []*v1.Service, apiServer netip.AddrPort) []*v1.Service {
	out := slices.Clone(services)
	for i, service := range out {
		if service.Namespace != metav1.NamespaceDefault || service.Name != "kubernetes" || len(service.Spec.Ports) == 0 {
			continue
		}
		service = service.DeepCopy()
		service.Spec.ClusterIP, service.Spec.Ports[0].Port = apiServer.Addr().String(), int32(apiServer.Port())
		out[i] = service
	}
	return out
}
