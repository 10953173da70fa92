// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package places

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// The resource and label of the engine's nodes and pods.
const (
	gpuMilli   = "example.com/gpu-milli"
	modelLabel = "gpu-model"
)

// engine is a player with Berth's engine and a profile.
type engine struct {
	cluster *cluster.Cluster
	decider *decide.Decider
	profile *plugins.Profile
	pods    map[Shape]*v1.Pod
	placed  int
	// resource is the name of the GPU resource, and unit is its amount per GPU.
	resource v1.ResourceName
	unit     int64
}

func newEngine(t *Trace, file string, seed uint64) (*engine, error) {
	c, err := config.Parse("profile", []byte(file), config.Options{})
	if err != nil {
		return nil, err
	}

	e := &engine{cluster: cluster.New(), profile: c.Profiles[0], pods: map[Shape]*v1.Pod{}, resource: gpuMilli, unit: Milli}
	if v := e.profile.DeviceValuer(); v != nil {
		e.resource, e.unit = v.Resource()
	}
	for i := range t.Nodes {
		n := &t.Nodes[i]
		e.cluster.SetNode(&v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{modelLabel: n.Model}},
			Status: v1.NodeStatus{Allocatable: v1.ResourceList{
				v1.ResourceCPU: *resource.NewMilliQuantity(n.CPU, resource.DecimalSI), v1.ResourceMemory: toQuantity(n.Memory),
				v1.ResourcePods: resource.MustParse("100k"), e.resource: *resource.NewQuantity(n.GPUs*e.unit, resource.DecimalSI),
			}},
		})
	}

	e.decider = decide.New(e.cluster, e.profile, seed)
	return e, nil
}

func toQuantity(n int64) resource.Quantity { return *resource.NewQuantity(n<<20, resource.BinarySI) }

// requestsOf returns the requests of the task's pod. GPUs are requested as the named resource, of
// which a GPU has the given amount; an empty name omits them.
func (s *Shape) requestsOf(gpus v1.ResourceName, unit int64) v1.ResourceList {
	list := v1.ResourceList{v1.ResourceCPU: *resource.NewMilliQuantity(s.CPU, resource.DecimalSI), v1.ResourceMemory: toQuantity(s.Memory)}
	if s.GPUs > 0 && gpus != "" {
		list[gpus] = *resource.NewQuantity(s.wantedGPUs()*unit/Milli, resource.DecimalSI)
	}
	return list
}

// newPod returns a pod for the task with the given requests.
func (s *Shape) newPod(requests v1.ResourceList) *v1.Pod {
	pod := &v1.Pod{Spec: v1.PodSpec{
		Containers: []v1.Container{{Name: "task", Image: "task", Resources: v1.ResourceRequirements{Requests: requests}}},
	}}
	if required := s.nodeAffinity(); required != nil {
		pod.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required}}
	}
	return pod
}

// nodeAffinity returns the pod's required node affinity, or nil.
func (s *Shape) nodeAffinity() *v1.NodeSelector {
	if s.GPUs == 0 || s.Models == "" {
		return nil
	}
	return &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{
		{Key: modelLabel, Operator: v1.NodeSelectorOpIn, Values: strings.Split(s.Models, "|")},
	}}}}
}

func (e *engine) podOf(t *Task) *v1.Pod {
	pod := e.pods[t.Shape]
	if pod == nil {
		pod = t.newPod(t.requestsOf(e.resource, e.unit))
		pod.Namespace, pod.Spec.SchedulerName = "default", v1.DefaultSchedulerName
		e.pods[t.Shape] = pod
	}
	e.placed++
	own := *pod
	own.Name, own.UID = t.Name, types.UID(strconv.Itoa(e.placed))
	return &own
}

// placeTask implements player.
func (e *engine) placeTask(t *Task) (node string, gpus []share, err error) {
	p := e.cluster.Pending(e.podOf(t))
	decision := e.decider.Decide(p)
	if decision.Node == nil {
		return "", nil, decision.Err
	}
	if err := e.placeOn(p, decision.Node); err != nil {
		return "", nil, err
	}
	return decision.Node.Name, e.sharesOf(p), nil
}

// placeOn reserves resources by the profile's plugins, places the pod on the node, and passes the
// pod to the plugins that learn from placements.
func (e *engine) placeOn(p *cluster.Pod, n *cluster.Node) error {
	for _, r := range e.profile.Reservers {
		if _, err := r.Reserve(e.cluster, p, n); err != nil {
			return fmt.Errorf("%s on %s: %w", p.Name(), n.Name, err)
		}
	}
	if p.Devices == nil {
		p.SetDevices(firstFit(p, n))
	}
	e.cluster.Place(p, n)
	for _, r := range e.profile.Reservers {
		if l, learns := r.(plugins.Learner); learns {
			l.Learn(e.cluster, p)
		}
	}
	return nil
}

// sharesOf returns a pod's shares of GPUs.
func (e *engine) sharesOf(p *cluster.Pod) (gpus []share) {
	if p.Devices != nil {
		for _, s := range *p.Devices {
			gpus = append(gpus, share{int(s.Device), s.Amount * Milli / e.unit})
		}
	}
	return gpus
}

// firstFit returns the first free GPUs, or the first free share of a GPU, for a pod whose profile
// does not choose the GPUs.
func firstFit(p *cluster.Pod, n *cluster.Node) *cluster.DeviceShares {
	amount := p.Class.Requests.Scalars[gpuMilli]
	if amount == 0 {
		return nil
	}
	var list cluster.DeviceShares
	each := min(amount, Milli)
	for i := range n.Size.Scalars[gpuMilli] / Milli {
		free := int64(Milli)
		if int(i) < len(n.Held) {
			free -= n.Held[i]
		}
		if free >= each && int64(len(list)) < amount/each {
			list = append(list, cluster.DeviceShare{Device: int32(i), Amount: each})
		}
	}
	return &list
}

// The profiles. As a filter, Fragmentation rejects a node for a share if no single GPU of the node
// has sufficient free capacity, even if all GPUs together have. Any device plugin for shares would
// do the same.
const (
	defaultProfile = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins: {filter: {enabled: [{name: Fragmentation}]}}
  pluginConfig:
  - {name: Fragmentation, args: {resource: example.com/gpu-milli, unit: 1000}}
`
	mostAllocatedProfile = defaultProfile + `  - name: NodeResourcesFit
    args:
      scoringStrategy:
        type: MostAllocated
        resources: [{name: cpu, weight: 1}, {name: memory, weight: 1}, {name: example.com/gpu-milli, weight: 1}]
`
	fragmentationProfile = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins:
    multiPoint: {enabled: [{name: Fragmentation}]}
    score: {disabled: [{name: "*"}], enabled: [{name: Fragmentation}]}
  pluginConfig:
  - name: Fragmentation
    args:
      resource: example.com/gpu-milli
      unit: 1000
`
)

// learntProfile returns the profile in a file without its list of tasks, so that the plugin learns
// the tasks.
func learntProfile(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	var parsed map[string]any
	if err := yaml.Unmarshal(text, &parsed); err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}

	profiles, _ := parsed["profiles"].([]any)
	for _, profile := range profiles {
		of, _ := profile.(map[string]any)
		configs, _ := of["pluginConfig"].([]any)
		for _, config := range configs {
			entry, _ := config.(map[string]any)
			if args, is := entry["args"].(map[string]any); is {
				delete(args, "tasks")
			}
		}
	}

	text, err = yaml.Marshal(parsed)
	return string(text), err
}

// profileOf returns the profile Fragmentation with the tasks of a mix as plugin arguments.
func profileOf(m *Mix) (string, error) {
	shapes, counts := m.countShapes()
	var tasks []plugins.FragmentationTask
	for i := range shapes {
		tasks = append(tasks, plugins.FragmentationTask{
			Requests: shapes[i].requestsOf(gpuMilli, Milli), Weight: counts[shapes[i]], NodeAffinity: shapes[i].nodeAffinity(),
		})
	}
	text, err := yaml.Marshal(map[string]any{"tasks": tasks})
	if err != nil {
		return "", err
	}
	return fragmentationProfile + "      " + strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", "\n      ") + "\n", nil
}
