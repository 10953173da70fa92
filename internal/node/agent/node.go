package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/node/agent/server"
)

// nodeGone records that the API had no node object at a version. As long as the agent runs, it is
// registered again.
func (a *Agent) nodeGone(version string) {
	if a.object.gone(version) {
		a.reportNode()
	}
}

// Node returns the node as last seen, or as it will register.
func (a *Agent) Node() *v1.Node { return a.object.newest() }

// register creates the node's object, or takes over an existing one. It retries until it succeeds.
func (a *Agent) register(ctx context.Context) bool {
	told := ""
	for {
		err := a.tryRegister(ctx)
		if err == nil || ctx.Err() != nil {
			return err == nil
		}
		if told != err.Error() {
			told = err.Error()
			klog.InfoS("Cannot register the node; it is tried again every second", "node", a.config.NodeName, "err", err)
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(time.Second):
		}
	}
}

func (a *Agent) tryRegister(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	nodes := a.client.CoreV1().Nodes()
	have, err := nodes.Get(ctx, a.config.NodeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		have, err = nodes.Create(ctx, a.newNode(), metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("create node: %w", err)
		}
		klog.InfoS("Registered the node", "node", have.Name)
	}
	if err != nil {
		return fmt.Errorf("get node: %w", err)
	}
	if changed := a.relabel(have); changed {
		if have, err = nodes.Update(ctx, have, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("update the node's labels: %w", err)
		}
	}
	a.object.seen(have)
	a.drivers.Registered()
	if err := a.updateNode(ctx, true); err != nil {
		return err
	}
	if err := a.devices.Settle(); err != nil { // a full disk does not keep a node from registering
		klog.ErrorS(err, "Cannot record that the node has registered; its extended resources stay at 0 until their plugins register")
	}
	return nil
}

// newNode is the object that the node registers with. Its taints are set only then; later they are
// up to the cluster.
func (a *Agent) newNode() *v1.Node {
	node := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: a.config.NodeName, Labels: a.labels(), Annotations: map[string]string{attachedByController: "true"}},
		Spec:       v1.NodeSpec{Taints: slices.Clone(a.config.Taints)},
	}
	node.Status = a.nodeStatus(node, time.Now())
	return node
}

func (a *Agent) labels() map[string]string {
	labels := map[string]string{
		v1.LabelHostname: a.config.NodeName, v1.LabelOSStable: "linux", v1.LabelArchStable: a.machine.arch,
		"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": a.machine.arch,
	}
	for k, v := range a.config.Labels {
		labels[k] = v
	}
	return labels
}

// attachedByController is the annotation of nodes whose volumes the attach-detach controller
// attaches.
const attachedByController = "volumes.kubernetes.io/controller-managed-attach-detach"

func (a *Agent) relabel(node *v1.Node) bool {
	changed := node.Annotations[attachedByController] != "true"
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, attachedByController, "true")
	for k, v := range a.labels() {
		if have, ok := node.Labels[k]; !ok || have != v {
			if node.Labels == nil {
				node.Labels = map[string]string{}
			}
			node.Labels[k], changed = v, true
		}
	}
	return changed
}

// keepNode keeps the node's status in the API up to date: changes at once, everything every few
// minutes.
func (a *Agent) keepNode(ctx context.Context) {
	reported := time.Now()
	ticker := time.NewTicker(a.config.StatusUpdate)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-a.nodeChanged:
		}
		if a.object.isMissing() {
			klog.InfoS("The node was deleted while its agent runs; it registers again", "node", a.config.NodeName)
			if !a.register(ctx) {
				return
			}
			reported = time.Now()
			continue
		}
		due := time.Since(reported) >= a.config.StatusReport
		request, cancel := context.WithTimeout(ctx, requestTimeout)
		err := a.updateNode(request, due)
		cancel()
		if err != nil {
			klog.InfoS("Cannot report the node's status; it is tried again", "node", a.config.NodeName, "err", err)
			continue
		}
		if due {
			reported = time.Now()
		}
	}
}

// updateNode writes the node's status if it has changed or, with anyway, in any case. It writes
// nothing else: NodeRestriction rejects a node that writes its taints, even if only to repeat
// slightly older ones.
func (a *Agent) updateNode(ctx context.Context, anyway bool) error {
	nodes := a.client.CoreV1().Nodes()
	node := a.Node()
	for {
		status := a.nodeStatus(node, time.Now())
		if !anyway && apiequality.Semantic.DeepEqual(withoutHeartbeat(status), withoutHeartbeat(node.Status)) {
			return nil
		}
		patch, err := statusPatch(node, status)
		if err != nil {
			return err
		}
		updated, err := nodes.Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		if err == nil {
			a.object.seen(updated)
			return nil
		}
		if !apierrors.IsConflict(err) {
			return err
		}
		if node, err = nodes.Get(ctx, a.config.NodeName, metav1.GetOptions{}); err != nil {
			return err
		}
	}
}

// statusPatch is a patch that applies only to this version of the node: a merge patch replaces
// whole lists, and others write conditions, too.
func statusPatch(node *v1.Node, status v1.NodeStatus) ([]byte, error) {
	type object struct {
		Metadata map[string]string `json:"metadata,omitempty"`
		Status   v1.NodeStatus     `json:"status"`
	}
	have, err := json.Marshal(object{Status: node.Status})
	if err != nil {
		return nil, err
	}
	want, err := json.Marshal(object{map[string]string{"resourceVersion": node.ResourceVersion, "uid": string(node.UID)}, status})
	if err != nil {
		return nil, err
	}
	return jsonpatch.CreateMergePatch(have, want)
}

// withoutHeartbeat is what of a status has to change for it to be written. Declared features are as
// at the start: an API server that does not keep them is not sent them again and again.
func withoutHeartbeat(st v1.NodeStatus) v1.NodeStatus {
	out := *st.DeepCopy()
	out.DeclaredFeatures = nil
	for i := range out.Conditions {
		out.Conditions[i].LastHeartbeatTime = metav1.Time{}
	}
	return out
}

// nodeStatus is the agent's status of the node merged into the API's: resources and conditions of
// others stay.
func (a *Agent) nodeStatus(node *v1.Node, now time.Time) v1.NodeStatus {
	st := *node.Status.DeepCopy()
	if st.Capacity == nil {
		st.Capacity = v1.ResourceList{}
	}
	for name, quantity := range a.capacity() {
		st.Capacity[name] = quantity
	}
	healthy := a.addDevices(st.Capacity)
	st.Allocatable = a.allocatable(st.Capacity)
	maps.Copy(st.Allocatable, healthy)
	st.Addresses = nil
	for _, ip := range a.config.NodeIPs {
		st.Addresses = append(st.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip.String()})
	}
	st.Addresses = append(st.Addresses, v1.NodeAddress{Type: v1.NodeHostName, Address: a.machine.hostname})
	st.DaemonEndpoints.KubeletEndpoint.Port = int32(a.port.Load())
	st.NodeInfo = a.machine.info
	st.NodeInfo.KubeletVersion = a.config.Version
	if r := a.runtime; r != nil {
		st.NodeInfo.ContainerRuntimeVersion = r.Name + "://" + r.Version
	}
	state := a.health.told()
	st.Features = &v1.NodeFeatures{SupplementalGroupsPolicy: &state.SupplementalGroupsPolicy}
	st.RuntimeHandlers = state.Handlers
	st.DeclaredFeatures = slices.Clone(server.DeclaredFeatures)
	st.Images = a.images.all()
	st.VolumesInUse = a.publisher.InUse()
	ready := a.readyCondition(now)
	if i := slices.IndexFunc(st.Conditions, func(c v1.NodeCondition) bool { return c.Type == v1.NodeReady }); i >= 0 && st.Conditions[i].Status != ready.Status {
		a.nodeEvent(map[bool]string{true: "NodeReady", false: "NodeNotReady"}[ready.Status == v1.ConditionTrue])
	}
	for _, c := range append(a.pressureConditions(node), ready) {
		setCondition(&st, c, now)
	}
	return st
}

// readyCondition is Ready if the runtime answers, the agent can see its pods, and the machine is
// not shutting down.
func (a *Agent) readyCondition(now time.Time) v1.NodeCondition {
	wrong := a.health.wrong(now)
	if a.goingDown.now.Load() {
		wrong = errShuttingDown
	}
	if wrong != nil {
		return v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionFalse, Reason: "KubeletNotReady", Message: wrong.Error()}
	}
	return v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status"}
}

func setCondition(st *v1.NodeStatus, c v1.NodeCondition, now time.Time) {
	stamp := metav1.NewTime(now.Truncate(time.Second))
	c.LastHeartbeatTime, c.LastTransitionTime = stamp, stamp
	i := slices.IndexFunc(st.Conditions, func(have v1.NodeCondition) bool { return have.Type == c.Type })
	if i < 0 {
		st.Conditions = append(st.Conditions, c)
		return
	}
	if st.Conditions[i].Status == c.Status {
		c.LastTransitionTime = st.Conditions[i].LastTransitionTime
	}
	st.Conditions[i] = c
}
