// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/test/bench/driver"
)

// crowd is a cluster that has been used for a while, identical in every run. It has nodes of a few
// kinds in several zones, and pods of many workloads. Some of the pods are misplaced.
type crowd struct {
	random *rand.Rand
	nodes  []*v1.Node
	places []place
	apps   []*app
}

// place holds the free capacity of a node and its kind.
type place struct {
	cpu, pods, gpus     int64 // in millicores, pods and devices
	zone                int
	light, ssd, spot    bool
	tainted, gpu, small bool
	apps                map[*app]bool
}

// app is a Deployment with its ReplicaSet, its pods, and perhaps a budget.
type app struct {
	number    int
	namespace string
	name      string
	cpu       int64
	shape     shape
	askew     bool  // some of its pods are misplaced
	places    []int // each pod's index in the places of the crowd
	set       *appsv1.ReplicaSet
}

type shape int

// These are the possible shapes of an app.
const (
	plain    shape = iota
	spread         // required spreading over zones
	apart          // required anti-affinity between pods, by node
	selected       // required node affinity to ssd
	even           // preferred spreading over zones
	cheap          // preferred node affinity to spot nodes
	devices        // one GPU per pod
)

const (
	perApp     = 50 // pods
	zones      = 5
	namespaces = 20
	gpu        = "nvidia.com/gpu"
	gpus       = 8 // GPUs per GPU node
	pool       = "pool"
	disk       = "disk"
)

// planCrowd plans the cluster. It returns an error if the nodes are too few for the pods.
func planCrowd(nodes, pods int) (*crowd, error) {
	c := &crowd{random: rand.New(rand.NewPCG(1, 2))}
	for i := range nodes {
		c.addNode(i)
	}

	for i := range pods / perApp {
		a := &app{number: i, namespace: fmt.Sprintf("team-%d", i%namespaces), name: fmt.Sprintf("app-%d", i),
			cpu: []int64{100, 250, 500, 1000, 2000}[i%5]}
		switch i % 20 {
		case 0, 1:
			a.shape, a.askew = spread, i%40 == 0
		case 2:
			a.shape, a.askew = apart, i%80 == 2
		case 3:
			a.shape, a.askew = selected, i%40 == 3
		case 4, 5:
			a.shape, a.askew = even, i%40 == 4
		case 6:
			a.shape, a.askew = cheap, i%40 == 6
		case 7:
			if i%60 == 7 {
				a.shape, a.cpu = devices, 2000
			}
		}
		for k := range perApp {
			i := c.placeFor(a, k)
			if i < 0 {
				return nil, fmt.Errorf("no node for pod %d of %s: %d nodes are too few for %d pods", k, a.name, nodes, pods)
			}
			a.places = append(a.places, i)
		}
		c.apps = append(c.apps, a)
	}
	return c, nil
}

// addNode adds a node. Of twenty nodes, twelve have 16 CPUs, five have 32, two have 8, and one has
// 64 CPUs and GPUs.
func (c *crowd) addNode(i int) {
	p := place{cpu: 16000, pods: 110, zone: i % zones, apps: map[*app]bool{}}
	round := i / zones // gives every zone nodes of each kind
	switch k := round % 20; {
	case k == 19:
		p.cpu, p.gpus, p.gpu = 64000, gpus, true
	case k >= 17:
		p.cpu, p.small = 8000, true
	case k >= 12:
		p.cpu = 32000
	}
	p.ssd, p.spot = !p.gpu && round%2 == 0, !p.gpu && round%7 == 3
	p.light = !p.gpu && !p.small && round%10 == 1
	p.tainted = !p.gpu && !p.light && round%200 == 5
	c.places = append(c.places, p)

	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i)}}
	node.Labels = map[string]string{v1.LabelHostname: node.Name, v1.LabelTopologyZone: fmt.Sprintf("zone-%d", p.zone)}
	if p.ssd {
		node.Labels[disk] = "ssd"
	}
	if p.spot {
		node.Labels[pool] = "spot"
	}
	if p.tainted {
		node.Spec.Taints = append(node.Spec.Taints, v1.Taint{Key: "maintenance", Value: "tonight", Effect: v1.TaintEffectNoSchedule})
	}
	room := driver.Amounts(p.cpu, 4*p.cpu)
	room[v1.ResourcePods] = *resource.NewQuantity(p.pods, resource.DecimalSI)
	if p.gpu {
		room[gpu] = *resource.NewQuantity(gpus, resource.DecimalSI)
		node.Spec.Taints = append(node.Spec.Taints, v1.Taint{Key: gpu, Value: "present", Effect: v1.TaintEffectNoSchedule})
	}
	driver.MakeReady(node, room, time.Now().Add(-time.Hour)) // pods only return to nodes that have been ready for a while
	c.nodes = append(c.nodes, node)
}

// placeFor returns the index of a random suitable node for the k-th pod of an app. Some pods of a
// skewed app get an unsuitable node. It returns -1 if it finds no node.
func (c *crowd) placeFor(a *app, k int) int {
	const misplaced = 5 // number of misplaced pods of a skewed app
	wrong := a.askew && k < misplaced
	suits := func(p *place) bool {
		switch a.shape {
		case spread:
			if a.askew { // as if the last zone had been unavailable
				return p.zone == k%(zones-1)
			}
			return p.zone == k%zones
		case apart:
			return p.apps[a] == (wrong && k > 0)
		case selected:
			return p.ssd != wrong
		case even:
			if a.askew {
				return p.zone < 2
			}
			return p.zone == k%zones
		case cheap:
			return p.spot != wrong
		}
		return true
	}
	for tries := 0; ; tries++ {
		i := c.random.IntN(len(c.places))
		p := &c.places[i]
		fits := p.cpu >= a.cpu && p.pods > 0 && p.gpu == (a.shape == devices) && (!p.gpu || p.gpus > gpus/2)
		// Lightly used nodes only get small pods, of at most two apps.
		if p.light && (a.cpu > 250 || a.shape != plain || len(p.apps) > 1) {
			fits = false
		}
		if fits && (suits(p) || tries > 50*len(c.places)) {
			p.cpu, p.pods, p.apps[a] = p.cpu-a.cpu, p.pods-1, true
			if p.gpu {
				p.gpus--
			}
			return i
		}
		if tries > 100*len(c.places) {
			return -1
		}
	}
}

// createObjects creates the objects. The pods are created with a node, and their status reports
// them as running.
func (c *crowd) createObjects(ctx context.Context, on *driver.Cluster) error {
	for i := range namespaces {
		if _, err := on.CreateNamespace(ctx, fmt.Sprintf("team-%d", i)); err != nil {
			return err
		}
	}

	if err := on.CreateNodes(ctx, len(c.nodes), func(i int) *v1.Node { return c.nodes[i] }); err != nil {
		return err
	}
	if err := driver.InParallel(ctx, len(c.apps), func(ctx context.Context, i int) error {
		return c.apps[i].createOwners(ctx, on.Client)
	}); err != nil {
		return err
	}
	return driver.InParallel(ctx, len(c.apps)*perApp, func(ctx context.Context, i int) error {
		a, k := c.apps[i/perApp], i%perApp
		return createPod(ctx, on.Client, a.newPod(k, c.nodes[a.places[k]].Name))
	})
}

// createPod creates a pod. If the pod has a node, its status reports it as running.
func createPod(ctx context.Context, client kubernetes.Interface, pod *v1.Pod) error {
	_, err := createWhole(ctx, client.CoreV1().Pods(pod.Namespace), pod, func(made *v1.Pod) {
		if made.Spec.NodeName != "" {
			setRunning(made)
		}
	})
	return err
}

// setRunning sets the pod's status to running.
func setRunning(pod *v1.Pod) {
	started := metav1.NewTime(time.Now().Add(-time.Minute))
	pod.Status = v1.PodStatus{
		Phase: v1.PodRunning, StartTime: &started, HostIP: "172.16.0.1", PodIP: "10.128.0.1", QOSClass: pod.Status.QOSClass,
		ContainerStatuses: []v1.ContainerStatus{{
			Name: "main", Image: image, ImageID: image, ContainerID: "containerd://" + string(pod.UID), Ready: true, Started: new(true),
			State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: started}},
		}},
	}
	for _, kind := range []v1.PodConditionType{v1.PodReadyToStartContainers, v1.PodInitialized, v1.PodReady,
		v1.ContainersReady, v1.PodScheduled} {
		pod.Status.Conditions = append(pod.Status.Conditions, v1.PodCondition{Type: kind, Status: v1.ConditionTrue,
			LastTransitionTime: started})
	}
}

const image = "registry.example/app:v1"

func (a *app) podLabels() map[string]string {
	return map[string]string{"app": a.name, "pod-template-hash": "6d5f8c7b9"}
}

func (a *app) labelSelector() *metav1.LabelSelector { return driver.OfApp(a.name) }

// newOwners returns the pods' owners and their budget, which may be nil, with the status that
// controllers would have written.
func (a *app) newOwners() (*appsv1.Deployment, *appsv1.ReplicaSet, *policyv1.PodDisruptionBudget) {
	replicas, template := int32(perApp), v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: a.podLabels()}, Spec: a.podSpec()}
	meta := metav1.ObjectMeta{Name: a.name, Namespace: a.namespace, Labels: map[string]string{"app": a.name}, Generation: 1}
	d := &appsv1.Deployment{
		ObjectMeta: meta,
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Selector: a.labelSelector(), Template: template},
		Status: appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: replicas, UpdatedReplicas: replicas,
			ReadyReplicas: replicas, AvailableReplicas: replicas},
	}

	meta.Name += "-6d5f8c7b9"
	rs := &appsv1.ReplicaSet{
		ObjectMeta: meta,
		Spec:       appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: a.labelSelector(), Template: template},
		Status: appsv1.ReplicaSetStatus{ObservedGeneration: 1, Replicas: replicas, ReadyReplicas: replicas,
			AvailableReplicas: replicas, FullyLabeledReplicas: replicas},
	}

	if a.number%5 > 0 {
		return d, rs, nil
	}
	away := intstr.FromString("10%")
	return d, rs, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: a.name, Namespace: a.namespace, Generation: 1},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &away, Selector: a.labelSelector()},
		Status: policyv1.PodDisruptionBudgetStatus{
			ObservedGeneration: 1, DisruptionsAllowed: replicas / 10, CurrentHealthy: replicas,
			DesiredHealthy: replicas - replicas/10, ExpectedPods: replicas,
		},
	}
}

func (a *app) ownedBy(d *appsv1.Deployment) []metav1.OwnerReference {
	return []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))}
}

// createOwners creates the pods' owners.
func (a *app) createOwners(ctx context.Context, client kubernetes.Interface) error {
	d, rs, budget := a.newOwners()
	made, err := createWhole(ctx, client.AppsV1().Deployments(a.namespace), d, func(made *appsv1.Deployment) { made.Status = d.Status })
	if err != nil {
		return err
	}
	rs.OwnerReferences = a.ownedBy(made)
	a.set, err = createWhole(ctx, client.AppsV1().ReplicaSets(a.namespace), rs, func(made *appsv1.ReplicaSet) { made.Status = rs.Status })
	if err != nil || budget == nil {
		return err
	}
	_, err = createWhole(ctx, client.PolicyV1().PodDisruptionBudgets(a.namespace), budget,
		func(made *policyv1.PodDisruptionBudget) { made.Status = budget.Status })
	return err
}

// createWhole creates an object and sets its status, which requires a separate request.
func createWhole[T any](ctx context.Context, client interface {
	Create(context.Context, *T, metav1.CreateOptions) (*T, error)
	UpdateStatus(context.Context, *T, metav1.UpdateOptions) (*T, error)
}, object *T, setStatus func(made *T)) (*T, error) {
	var made *T
	if err := driver.Patiently(ctx, func() (err error) {
		made, err = client.Create(ctx, object, metav1.CreateOptions{})
		return err
	}); err != nil {
		return nil, err
	}
	setStatus(made)
	return client.UpdateStatus(ctx, made, metav1.UpdateOptions{})
}

// newPod returns the k-th pod.
func (a *app) newPod(k int, node string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%05x", a.set.Name, k), Namespace: a.namespace,
		Labels: a.podLabels()}, Spec: a.podSpec()}
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(a.set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
	pod.Spec.NodeName = node
	return pod
}

func (a *app) podSpec() v1.PodSpec {
	spec := v1.PodSpec{Containers: []v1.Container{{
		Name: "main", Image: image, Ports: []v1.ContainerPort{{ContainerPort: 8080}},
		Env: []v1.EnvVar{
			{Name: "LOG_LEVEL", Value: "info"},
			{Name: "POD_NAME", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
		},
		Resources: v1.ResourceRequirements{Requests: driver.Amounts(a.cpu, 2*a.cpu)},
	}}}

	over := func(key string, skew int32, action v1.UnsatisfiableConstraintAction) {
		spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{MaxSkew: skew, TopologyKey: key,
			WhenUnsatisfiable: action, LabelSelector: a.labelSelector()}}
	}

	switch a.shape {
	case spread:
		over(v1.LabelTopologyZone, 3, v1.DoNotSchedule)
	case even:
		over(v1.LabelTopologyZone, 1, v1.ScheduleAnyway)
	case apart:
		spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{
				{LabelSelector: a.labelSelector(), TopologyKey: v1.LabelHostname},
			},
		}}
	case selected:
		spec.NodeSelector = map[string]string{disk: "ssd"}
	case cheap:
		spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []v1.PreferredSchedulingTerm{{
				Weight: 100, Preference: v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{Key: pool,
					Operator: v1.NodeSelectorOpIn, Values: []string{"spot"}}}},
			}}}}
	case devices:
		forDevices(&spec, 1)
	}

	return spec
}

// forDevices makes the pod request n devices.
func forDevices(spec *v1.PodSpec, n int64) {
	spec.Containers[0].Resources.Requests[gpu] = *resource.NewQuantity(n, resource.DecimalSI)
	spec.Containers[0].Resources.Limits = v1.ResourceList{gpu: *resource.NewQuantity(n, resource.DecimalSI)}
	spec.Tolerations = []v1.Toleration{{Key: gpu, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoSchedule}}
}
