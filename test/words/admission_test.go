// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package words

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiserver "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/plugin/pkg/admission/defaulttolerationseconds"
	"k8s.io/kubernetes/plugin/pkg/admission/extendedresourcetoleration"
	"k8s.io/kubernetes/plugin/pkg/admission/nodetaint"
	"k8s.io/kubernetes/plugin/pkg/admission/podtolerationrestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/priority"
	"k8s.io/kubernetes/plugin/pkg/admission/runtimeclass"
	"sigs.k8s.io/randfill"

	tolerationconfig "k8s.io/kubernetes/plugin/pkg/admission/podtolerationrestriction/apis/podtolerationrestriction"

	"github.com/berth-k8s/berth/internal/admission"
)

// chain returns upstream's admission plugins for the rules that Berth implements, in upstream's
// order.
func chain(t *testing.T, objects ...runtime.Object) []apiserver.Interface {
	client := fake.NewClientset(objects...)
	factory := informers.NewSharedInformerFactory(client, 0)
	plugins := []apiserver.Interface{
		priority.NewPlugin(), defaulttolerationseconds.NewDefaultTolerationSeconds(),
		podtolerationrestriction.NewPodTolerationsPlugin(&tolerationconfig.Configuration{}), extended(t), runtimeclass.NewRuntimeClass(),
	}
	for _, plugin := range plugins {
		if p, ok := plugin.(initializer.WantsExternalKubeClientSet); ok {
			p.SetExternalKubeClientSet(client)
		}
		if p, ok := plugin.(initializer.WantsExternalKubeInformerFactory); ok {
			p.SetExternalKubeInformerFactory(factory)
		}
		if p, ok := plugin.(initializer.WantsFeatures); ok {
			p.InspectFeatureGates(utilfeature.DefaultFeatureGate)
		}
	}
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	return plugins
}

func extended(t *testing.T) apiserver.Interface {
	registry := apiserver.NewPlugins()
	extendedresourcetoleration.Register(registry)
	plugin, err := registry.InitPlugin(extendedresourcetoleration.PluginName, nil, apiserver.PluginInitializers{})
	if err != nil {
		t.Fatal(err)
	}
	return plugin
}

// admit calls all mutating and then all validating plugins, like the API server.
func admit(plugins []apiserver.Interface, pod *core.Pod) error {
	attributes := apiserver.NewAttributesRecord(pod, nil, core.Kind("Pod").WithVersion("version"), pod.Namespace, pod.Name,
		core.Resource("pods").WithVersion("version"), "", apiserver.Create, &metav1.CreateOptions{}, false, nil)
	for _, plugin := range plugins {
		if p, ok := plugin.(apiserver.MutationInterface); ok && plugin.Handles(apiserver.Create) {
			if err := p.Admit(context.Background(), attributes, nil); err != nil {
				return err
			}
		}
	}
	for _, plugin := range plugins {
		if p, ok := plugin.(apiserver.ValidationInterface); ok && plugin.Handles(apiserver.Create) {
			if err := p.Validate(context.Background(), attributes, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// world returns random objects that pods refer to. Some of the classes that pods name do not exist.
func (s source) world() (*v1.Namespace, []*schedulingv1.PriorityClass, []*nodev1.RuntimeClass) {
	namespace := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Annotations: map[string]string{}}}
	set := func(annotation string, list []v1.Toleration) {
		text, _ := json.Marshal(list)
		namespace.Annotations[annotation] = string(text)
	}
	if s.chance(50) {
		set(admission.DefaultTolerationsAnnotation, some(s, 3, s.toleration))
	}
	if s.chance(20) {
		set(admission.AllowedTolerationsAnnotation, append(some(s, 3, s.toleration), v1.Toleration{Operator: v1.TolerationOpExists, Effect: s.effect()}))
	}
	var priorities []*schedulingv1.PriorityClass
	var runtimes []*nodev1.RuntimeClass
	policy := v1.PreemptLowerPriority
	for i, name := range []string{"a", "b", "c-1"} {
		priorities = append(priorities, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name},
			Value: int32(i), GlobalDefault: s.chance(10), PreemptionPolicy: &policy})
		class := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if s.chance(50) {
			class.Overhead = &nodev1.Overhead{PodFixed: s.amounts()}
		}
		if s.chance(60) {
			class.Scheduling = &nodev1.Scheduling{NodeSelector: s.labels(), Tolerations: some(s, 3, s.toleration)}
		}
		runtimes = append(runtimes, class)
	}
	return namespace, priorities, runtimes
}

func TestAdmissionIsUpstreams(t *testing.T) {
	accepted, refused := 0, 0
	for seed := range uint64(600) {
		s := newSource(seed)
		namespace, priorities, runtimes := s.world()
		objects := []runtime.Object{namespace}
		for i := range priorities {
			objects = append(objects, priorities[i], runtimes[i])
		}
		plugins, catalog := chain(t, objects...), admission.NewCatalog([]*v1.Namespace{namespace}, priorities, runtimes)
		for range 20 {
			pod := s.pod()
			pod.Namespace = "default"
			if s.chance(80) {
				pod.Spec.Overhead = nil
			}
			if s.chance(80) {
				pod.Spec.PreemptionPolicy = nil
			}
			legacyscheme.Scheme.Default(pod)
			brought := pod.DeepCopy()
			var theirs core.Pod
			internal(t, pod, &theirs)
			theirErr, ourErr := admit(plugins, &theirs), admission.Pod(admission.Config{}, catalog, pod)
			if (theirErr == nil) != (ourErr == nil) {
				t.Fatalf("seed %d: upstream %v, Berth %v", seed, theirErr, ourErr)
			}
			if ourErr != nil {
				refused++
				// Upstream checks the allow-list twice, and may therefore report it before the
				// error that Berth reports.
				if !strings.HasSuffix(theirErr.Error(), ourErr.Error()) && !strings.Contains(theirErr.Error(), "whitelist") {
					t.Fatalf("seed %d: upstream %v, Berth %v", seed, theirErr, ourErr)
				}
				continue
			}
			accepted++
			var back v1.Pod
			internal(t, &theirs, &back)
			same(t, seed, &back.Spec, &pod.Spec)
			again := pod.DeepCopy()
			if err := admission.Pod(admission.Config{}, catalog, again); err != nil {
				t.Fatalf("seed %d: accepted, then refused: %v", seed, err)
			}
			same(t, seed, &pod.Spec, &again.Spec)
			behindUpstreams(t, seed, plugins, catalog, brought, pod)
		}
	}
	t.Logf("%d pods accepted, %d refused", accepted, refused)
}

// behindUpstreams passes the pod through upstream's default plugins and then twice through Berth's
// rules, like a webhook that is called again. Both passes must have the same result as Berth's
// rules alone. If the creator set tolerations, their order may differ.
func behindUpstreams(t *testing.T, seed uint64, plugins []apiserver.Interface, catalog *admission.Catalog, brought, want *v1.Pod) {
	t.Helper()
	fields := `{"f:spec":{"f:containers":{}}}`
	if len(brought.Spec.Tolerations) > 0 {
		fields = `{"f:spec":{"f:tolerations":{}}}`
	}
	var theirs core.Pod
	internal(t, brought, &theirs)
	if err := admit([]apiserver.Interface{plugins[0], plugins[1], plugins[4]}, &theirs); err != nil {
		t.Fatalf("seed %d: Berth takes what upstream's plugins refuse: %v", seed, err)
	}
	var pod v1.Pod
	internal(t, &theirs, &pod)
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields)}}
	for range 2 {
		if err := admission.Pod(admission.Config{AfterAPIServer: true}, catalog, &pod); err != nil {
			t.Fatalf("seed %d: refused behind upstream's plugins: %v", seed, err)
		}
		got, want := pod.Spec.DeepCopy(), want.Spec.DeepCopy()
		if len(brought.Spec.Tolerations) > 0 {
			inOrder(got.Tolerations)
			inOrder(want.Tolerations)
		}
		same(t, seed, want, got)
	}
}

func inOrder(tolerations []v1.Toleration) {
	slices.SortFunc(tolerations, func(a, b v1.Toleration) int {
		x, _ := json.Marshal(a)
		y, _ := json.Marshal(b)
		return bytes.Compare(x, y)
	})
}

func same(t *testing.T, seed uint64, want, got any) {
	t.Helper()
	if apiequality.Semantic.DeepEqual(want, got) {
		return
	}
	a, _ := json.Marshal(want)
	b, _ := json.Marshal(got)
	t.Fatalf("seed %d: want\n%s\ngot\n%s", seed, a, b)
}

func TestDefaultsAreUpstreams(t *testing.T) {
	for seed := range uint64(trials) {
		s := newSource(seed)
		pod := s.pod()
		for i := range pod.Spec.Containers {
			for j := range pod.Spec.Containers[i].Ports {
				pod.Spec.Containers[i].Ports[j].Protocol = pick(s, v1.ProtocolTCP, "")
			}
		}
		// Set fields that are irrelevant to scheduling.
		var other v1.PodSpec
		s.fill(seed, &other)
		pod.Spec.Volumes, pod.Spec.EphemeralContainers, pod.Spec.Overhead = other.Volumes, other.EphemeralContainers, other.Overhead
		for i, c := range slices.Concat(other.Containers, other.InitContainers) {
			if i < len(pod.Spec.Containers) {
				own := &pod.Spec.Containers[i]
				own.Image, own.Env, own.Lifecycle, own.ImagePullPolicy = s.image(), c.Env, c.Lifecycle, c.ImagePullPolicy
				own.LivenessProbe, own.ReadinessProbe, own.StartupProbe = c.LivenessProbe, c.ReadinessProbe, c.StartupProbe
				own.TerminationMessagePath, own.TerminationMessagePolicy = c.TerminationMessagePath, c.TerminationMessagePolicy
			}
		}
		theirs := pod.DeepCopy()
		legacyscheme.Scheme.Default(theirs)
		admission.Default(pod)
		same(t, seed, &theirs.Spec, &pod.Spec)
	}
}

// fill sets random values, and leaves many fields empty.
func (s source) fill(seed uint64, object any) {
	randfill.NewWithSeed(int64(seed)).NilChance(0.6).NumElements(0, 3).Funcs(
		func(q *resource.Quantity, c randfill.Continue) {
			*q = *resource.NewMilliQuantity(c.Int63n(1e6), resource.DecimalSI)
		},
		func(text *string, c randfill.Continue) {
			if *text = ""; c.Bool() {
				*text = c.String(5)
			}
		},
		func(number *int32, c randfill.Continue) { *number = c.Int31n(3) },
	).Fill(object)
}

func (s source) image() string {
	return pick(s, "", "nginx", "nginx:latest", "nginx:1", "registry:5000/a/b", "registry:5000/a/b:1", "UPPER", "a..b", "a:",
		"a@sha256:0123456789012345678901234567890123456789012345678901234567890123",
		"a:latest@sha256:0123456789012345678901234567890123456789012345678901234567890123")
}

func TestNewNodesAreUpstreams(t *testing.T) {
	plugin := nodetaint.NewPlugin()
	for seed := range uint64(trials) {
		s := newSource(seed)
		n := &v1.Node{Spec: v1.NodeSpec{Taints: some(s, 3, s.taint)}}
		var theirs core.Node
		internal(t, n, &theirs)
		if err := plugin.Admit(context.Background(), apiserver.NewAttributesRecord(&theirs, nil, core.Kind("Node").WithVersion("version"), "", "n",
			core.Resource("nodes").WithVersion("version"), "", apiserver.Create, nil, false, nil), nil); err != nil {
			t.Fatal(err)
		}
		var back v1.Node
		internal(t, &theirs, &back)
		admission.Node(n)
		same(t, seed, back.Spec, n.Spec)
	}
}
