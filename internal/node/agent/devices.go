package agent

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/node/admit"
	"github.com/berth-k8s/berth/internal/node/agent/cri"
	"github.com/berth-k8s/berth/internal/node/agent/devices"
	"github.com/berth-k8s/berth/internal/node/agent/devices/plugins"
	"github.com/berth-k8s/berth/internal/node/agent/devices/podresources"
	"github.com/berth-k8s/berth/internal/node/agent/lifecycle"
)

// openDevices reads which pods hold which devices.
func (a *Agent) openDevices() {
	a.devices = plugins.Open(plugins.Options{
		Dir: filepath.Join(a.config.RootDir, "device-plugins"),
		Changed: func(holders []types.UID) {
			a.reportNode()
			for _, uid := range holders {
				if w := a.pods.get(uid); w != nil {
					w.wake()
				}
			}
		},
		Registered: a.kubelet.PluginRegistered, Allocated: a.kubelet.DevicesAllocated,
	})
}

// addDevices adds the node's devices to its capacity, and returns how many of them are healthy. A
// node that has never had a device plugin reports none, whatever the API says: that was another
// machine.
func (a *Agent) addDevices(capacity v1.ResourceList) v1.ResourceList {
	if a.devices.Fresh() {
		for name := range capacity {
			if rules.IsExtendedResource(name) {
				capacity[name] = resource.Quantity{Format: resource.DecimalSI}
			}
		}
	}
	healthy := v1.ResourceList{}
	for name, count := range a.devices.Counts() {
		capacity[v1.ResourceName(name)] = *resource.NewQuantity(int64(count.All), resource.DecimalSI)
		healthy[v1.ResourceName(name)] = *resource.NewQuantity(int64(count.Healthy), resource.DecimalSI)
	}
	return healthy
}

// allocateDevices gives a pod that is to be admitted its devices. As by the kubelet, only what
// makes the pod unwelcome in any case comes before that: plugins may prepare devices for it. done
// is false if the pod has to end meanwhile.
func (w *worker) allocateDevices(ctx context.Context, pod *v1.Pod, ending *lifecycle.Ending) (short *admit.Refusal, done bool) {
	a := w.agent
	if w.settled(pod, ending) || a.goingDown.now.Load() || !a.devices.Wants(pod) || admit.Unwelcome(a.admissionOf(pod)) != nil {
		return nil, true
	}
	ctx, stop := w.starting(ctx)
	defer stop()
	err := a.devices.Allocate(ctx, pod)
	switch {
	case err == nil:
		return nil, true
	case ctx.Err() != nil:
		return nil, false
	}
	return &admit.Refusal{Reason: "UnexpectedAdmissionError", Message: fmt.Sprintf("Allocate failed due to %v, which is unexpected", err)}, true
}

// withDevices adds to a container what it gets with its devices. Its own environment, which comes
// later, takes precedence.
func withDevices(p *cri.Process, given devices.Grant) {
	for _, name := range slices.Sorted(maps.Keys(given.Env)) {
		p.Env = append(p.Env, &runtimeapi.KeyValue{Key: name, Value: []byte(given.Env[name])})
	}
	var mounts []*runtimeapi.Mount
	for _, m := range given.Mounts {
		mounts = append(mounts, &runtimeapi.Mount{ContainerPath: m.Container, HostPath: m.Host, Readonly: m.ReadOnly})
	}
	p.Mounts = append(mounts, p.Mounts...)
	for _, n := range given.Nodes {
		p.Devices = append(p.Devices, &runtimeapi.Device{ContainerPath: n.Container, HostPath: n.Host, Permissions: n.Permissions})
	}
	for _, name := range given.CDI {
		p.CDI = append(p.CDI, &runtimeapi.CDIDevice{Name: name})
	}
	p.Annotations = given.Annotations
}

// addDeviceHealth adds the health of its devices to the status of each container. What a container
// had stays as it was last.
func (w *worker) addDeviceHealth(pod *v1.Pod, status *v1.PodStatus) {
	w.mu.Lock()
	before := pod.Status.ContainerStatuses
	if w.reported != nil {
		before = w.reported.ContainerStatuses
	}
	w.mu.Unlock()
	for i := range status.ContainerStatuses {
		cs := &status.ContainerStatuses[i]
		cs.AllocatedResourcesStatus = w.agent.devices.Health(w.uid, cs.Name)
		if cs.AllocatedResourcesStatus == nil {
			if j := slices.IndexFunc(before, func(b v1.ContainerStatus) bool { return b.Name == cs.Name }); j >= 0 {
				cs.AllocatedResourcesStatus = before[j].AllocatedResourcesStatus
			}
		}
	}
}

// serveResources tells programs on the machine which pod has which devices.
func (a *Agent) serveResources(ctx context.Context) {
	server := &podresources.Server{
		Pods: a.Pods, Active: a.ActivePods, Held: a.devices.Held, Allocatable: a.devices.Allocatable,
		CPUs: a.pinning.ownIDs, AllCPUs: a.pinning.allocatableIDs, Memory: a.pinning.blocks, AllMemory: a.pinning.allocatableBlocks,
	}
	server.Run(ctx, filepath.Join(a.config.RootDir, "pod-resources"))
}
