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
	"github.com/berth-k8s/berth/internal/node/agent/topology"
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

// allotment is how a pod that is to be admitted was given devices. The zero value: it wants none,
// or nothing is aligned.
type allotment struct {
	// short is why it was not given them.
	short *admit.Refusal
	// misaligned is why it has none although there are enough: with the CPUs and the memory that
	// were free, it could not be given all three.
	misaligned *admit.Refusal
	// held provides hints about its devices, with which the pod's CPUs and memory have to agree;
	// nil: nothing has to.
	held topology.Provider
	// changes is that of pinning when the devices were chosen; fresh: the pod had none before.
	changes int
	fresh   bool
}

// allocateDevices gives a pod that is to be admitted its devices. As by the kubelet, only what
// makes the pod unwelcome in any case comes before that: plugins may prepare devices for it. done
// is false if the pod has to end meanwhile.
func (w *worker) allocateDevices(ctx context.Context, pod *v1.Pod, ending *lifecycle.Ending) (given allotment, done bool) {
	a := w.agent
	if w.settled(pod, ending) || a.goingDown.now.Load() || !a.devices.Wants(pod) || admit.Unwelcome(a.admissionOf(pod)) != nil {
		return given, true
	}
	ctx, stop := w.starting(ctx)
	defer stop()
	var err error
	if a.pinning.aligns() {
		given, err = a.alignDevices(ctx, pod)
	} else {
		err = a.devices.Allocate(ctx, pod)
	}
	switch {
	case err == nil:
		return given, true
	case ctx.Err() != nil:
		return given, false
	}
	given.short = &admit.Refusal{Reason: "UnexpectedAdmissionError", Message: fmt.Sprintf("Allocate failed due to %v, which is unexpected", err)}
	return given, true
}

// alignDevices gives a pod devices near the CPUs and the memory that are free. These are assigned
// only when the pod is admitted: plugins are asked meanwhile, and other pods do not wait for them.
func (a *Agent) alignDevices(ctx context.Context, pod *v1.Pod) (given allotment, err error) {
	nodes := a.pinning.machine.Nodes
	given.held, given.fresh = a.devices.Placed(nodes), !slices.Contains(a.devices.Holders(), pod.UID)
	refused, err := a.devices.AllocateAligned(ctx, pod, nodes, func(provider topology.Provider) (refused *topology.Refusal) {
		refused, given.changes = a.pinning.align(pod, provider)
		return refused
	})
	if refused != nil {
		given.misaligned = &admit.Refusal{Reason: refused.Reason, Message: refused.Message}
	}
	return given, err
}

// fits returns why a pod cannot be given its CPUs and memory, beside its devices; nil: it can.
// again: others were given some since the devices were chosen, and these have to be chosen anew.
func (a *Agent) fits(pod *v1.Pod, given allotment) (refused *admit.Refusal, again bool) {
	refused, changes := a.pinning.refuse(pod, given.held)
	if given.misaligned != nil {
		refused = given.misaligned
	}
	if again = refused != nil && given.fresh && changes != given.changes; again {
		a.devices.Free(pod.UID)
	}
	return refused, again
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
