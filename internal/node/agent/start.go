package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/node/agent/cri"
	"github.com/berth-k8s/berth/internal/node/agent/lifecycle"
	"github.com/berth-k8s/berth/internal/node/agent/metrics"
	"github.com/berth-k8s/berth/internal/node/agent/volumes"
)

// refusal is why a container cannot be started, for its status and an event.
type refusal struct {
	reason, message string
	// event and said are the event's reason and message, if not the usual "Failed", "Error: ...".
	event, said string
	// pull is the message while the container waits for the next pull; empty if no pull has failed.
	pull string
}

func (r *refusal) Error() string { return r.reason + ": " + r.message }

// startContainer takes a container from its image through to its postStart hook.
func (w *worker) startContainer(ctx context.Context, pod *v1.Pod, seen lifecycle.Seen, action lifecycle.Action) error {
	a, c := w.agent, action.Container
	whole := ctx
	ctx, done := w.starting(ctx)
	defer done()
	cgroup, ok := w.prepare(ctx, pod)
	if !ok {
		return nil
	}
	sandbox, _, err := a.sandboxConfig(pod, 0, cgroup)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(seen.Sandboxes, func(s lifecycle.Sandbox) bool { return s.ID == action.ID }); i >= 0 {
		sandbox.Metadata.Attempt = seen.Sandboxes[i].Attempt
	}
	id, err := a.makeContainer(ctx, pod, seen, action, sandbox)
	if id == "" && ctx.Err() != nil {
		return nil // cancelled
	}
	var refused *refusal
	if errors.As(err, &refused) {
		a.kubelet.ContainerStarted(typeOf(pod, c.Name), refused.reason)
		w.refused(pod, c, refused)
		return nil
	}
	if err != nil {
		return err
	}
	a.kubelet.ContainerStarted(typeOf(pod, c.Name), "")
	w.memory.Started(c, seenBefore(seen, c.Name), time.Now())
	klog.V(2).InfoS("Started a container", "pod", klog.KObj(pod), "uid", pod.UID, "container", c.Name, "id", id)
	return w.postStart(ctx, whole, pod, seen, c, id)
}

// typeOf is the type of a pod's container in metrics.
func typeOf(pod *v1.Pod, container string) string {
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == container {
			return metrics.InitContainerType
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == container {
			return metrics.EphemeralContainerType
		}
	}
	return metrics.ContainerType
}

func seenBefore(seen lifecycle.Seen, name string) *lifecycle.Container {
	if i := slices.IndexFunc(seen.Containers, func(c lifecycle.Container) bool { return c.Name == name }); i >= 0 {
		return &seen.Containers[i]
	}
	return nil
}

func (w *worker) refused(pod *v1.Pod, c *v1.Container, r *refusal) {
	w.memory.Failed(c.Name, lifecycle.Failure{Reason: r.reason, Message: r.message, Pull: r.pull, Image: c.Image, At: time.Now()})
	reason, said := r.event, r.said
	if reason == "" {
		reason, said = "Failed", "Error: "+r.message
	}
	w.agent.containerEvent(pod, c.Name, v1.EventTypeWarning, reason, said)
}

func (a *Agent) makeContainer(ctx context.Context, pod *v1.Pod, seen lifecycle.Seen, action lifecycle.Action, sandbox *runtimeapi.PodSandboxConfig) (string, error) {
	c := action.Container
	image, err := a.images.ensure(ctx, pod, c, sandbox)
	if err != nil {
		return "", err
	}
	config, err := a.containerConfig(ctx, pod, c, seen, action, image)
	if err != nil {
		return "", &refusal{reason: "CreateContainerConfigError", message: err.Error()}
	}
	if err := cri.MakeLogs(a.config.PodLogDir, pod, c.Name); err != nil {
		return "", &refusal{reason: "CreateContainerConfigError", message: err.Error()}
	}
	leave, err := a.starts.enter(ctx)
	if err != nil {
		return "", err
	}
	defer leave()
	// Must not be cancelled between creating and starting it: see makeSandbox.
	whole := context.WithoutCancel(ctx)
	id, err := a.runtime.Runtime.CreateContainer(whole, action.ID, config, sandbox)
	if err != nil {
		return "", &refusal{reason: "CreateContainerError", message: status.Convert(err).Message()}
	}
	a.pinning.put(pod.UID, c.Name, id, config.Linux.Resources.CpusetCpus)
	a.containerEvent(pod, c.Name, v1.EventTypeNormal, "Created", "Container created")
	if err := a.runtime.Runtime.StartContainer(whole, id); err != nil {
		return "", &refusal{reason: "RunContainerError", message: status.Convert(err).Message()}
	}
	a.containerEvent(pod, c.Name, v1.EventTypeNormal, "Started", "Container started")
	return id, nil
}

func (a *Agent) containerConfig(ctx context.Context, pod *v1.Pod, c *v1.Container, seen lifecycle.Seen, action lifecycle.Action, image *runtimeapi.Image) (*runtimeapi.ContainerConfig, error) {
	given, err := a.devices.Start(ctx, pod, c)
	if err != nil {
		return nil, err
	}
	ips := podIPs(pod, seen, a.hostIPs())
	process, err := a.process(pod, c, ips)
	if err != nil {
		return nil, err
	}
	mounts, err := a.mounts(pod, c, process, ips, a.recursiveReadOnly(pod))
	if err != nil {
		return nil, err
	}
	p := cri.Process{
		ImageRef: image.Id, Command: process.Command, Args: process.Args, Mounts: mounts,
		Resources: a.cgroups.container(pod, c), SeccompDir: filepath.Join(a.config.RootDir, "seccomp"), Target: targetOf(pod, c.Name, seen),
	}
	p.Resources.CpusetCpus, p.Resources.CpusetMems = a.pinning.cpusOf(pod.UID, c.Name), a.pinning.memoryOf(pod.UID, c.Name)
	blocks, err := a.volumes.Devices(pod, c)
	if err != nil {
		return nil, err
	}
	p.Devices = criDevices(blocks)
	withDevices(&p, given)
	for _, v := range process.Env {
		p.Env = append(p.Env, &runtimeapi.KeyValue{Key: v.Name, Value: []byte(v.Value)})
	}
	return a.runtime.ContainerConfig(pod, c, action.Attempt, image, p)
}

// targetOf is the container whose processes an ephemeral container is to see.
func targetOf(pod *v1.Pod, name string, seen lifecycle.Seen) string {
	for i := range pod.Spec.EphemeralContainers {
		if e := &pod.Spec.EphemeralContainers[i]; e.Name == name && e.TargetContainerName != "" {
			if c := seenBefore(seen, e.TargetContainerName); c != nil {
				return c.ID
			}
		}
	}
	return ""
}

func podIPs(pod *v1.Pod, seen lifecycle.Seen, hostIPs []string) []string {
	if pod.Spec.HostNetwork {
		return hostIPs
	}
	if len(seen.Sandboxes) > 0 {
		return seen.Sandboxes[0].IPs
	}
	return nil
}

func criMounts(list []volumes.Mount) []*runtimeapi.Mount {
	var out []*runtimeapi.Mount
	for _, m := range list {
		propagation := runtimeapi.MountPropagation_PROPAGATION_PRIVATE
		switch m.Propagation {
		case v1.MountPropagationHostToContainer:
			propagation = runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
		case v1.MountPropagationBidirectional:
			propagation = runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
		}
		out = append(out, &runtimeapi.Mount{
			ContainerPath: m.ContainerPath, HostPath: m.HostPath, Readonly: m.ReadOnly,
			RecursiveReadOnly: m.RecursiveReadOnly, Propagation: propagation,
		})
	}
	return out
}

// postStart runs the hook. A container whose hook fails is killed, which is not interrupted when
// the start is cancelled.
func (w *worker) postStart(ctx, whole context.Context, pod *v1.Pod, seen lifecycle.Seen, c *v1.Container, id string) error {
	if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return nil
	}
	err := w.agent.hooksOf.PostStart(ctx, pod, c, id, firstOf(podIPs(pod, seen, w.agent.hostIPs())))
	if err == nil || ctx.Err() != nil {
		return nil
	}
	w.memory.Failed(c.Name, lifecycle.Failure{Reason: "PostStartHookError", Message: err.Error(), Image: c.Image, At: time.Now()})
	grace := lifecycle.GraceOf(pod)
	w.stopContainer(whole, pod, seen, lifecycle.Action{
		ID: id, Name: c.Name, Container: c, By: time.Now().Add(grace), Hook: grace > 0, Message: fmt.Sprintf("FailedPostStartHook: stopping container %s", c.Name),
	})
	return nil
}

func firstOf(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}
