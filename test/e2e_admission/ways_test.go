// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eadmission

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/controlplane"
	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/admission/webhook"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// way is one path by which objects are admitted, with Berth's rules or upstream's plugins.
type way struct {
	name   string
	create func(context.Context, *v1.Pod) (*v1.Pod, error)
	node   func(context.Context, *v1.Node) (*v1.Node, error)
	class  func(context.Context, *schedulingv1.PriorityClass) error
	// upstreams is set if only upstream's plugins run. They do not implement all of Berth's rules.
	upstreams bool
}

// TestAllWaysInAreOne verifies that all ways of admission return exactly the same pod, or the same
// refusal, for the cases in testdata/cases.txt. Berth's rules run compiled in, offline, and in a
// webhook with three API servers of upstream's: with its default plugins, with all of its plugins
// for the same purposes, and with none of these. Finally, upstream's plugins run without Berth's
// rules.
//
//	have    an object that pods name, in every cluster: Namespace, PriorityClass, RuntimeClass
//	node    a node that registers; prints its taints
//	class   a priority class; prints the refusal
//	create  a pod; prints the fields of its spec named by show=, or the refusal.
//	        "berth": upstream has no such rule. "better": Berth's message contains upstream's
//	        message and explains more
func TestAllWaysInAreOne(t *testing.T) {
	w := newWorld(t)
	datadriven.RunTest(t, "testdata/cases.txt", func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "have":
			w.have(t, d.Input)
			return ""
		case "create":
			return w.create(t, d)
		case "node":
			var node v1.Node
			parse(t, d.Input, &node)
			return w.agreed(t, d, func(way way) string { return taints(way.node(t.Context(), node.DeepCopy())) })
		case "class":
			var class schedulingv1.PriorityClass
			parse(t, d.Input, &class)
			return w.agreed(t, d, func(way way) string {
				if err := way.class(t.Context(), class.DeepCopy()); err != nil {
					return refused + words(err) + "\n"
				}
				return "accepted\n"
			})
		}
		return "unknown command " + d.Cmd
	})
}

type world struct {
	clusters []*cluster
	ways     []way
	catalog  *admission.Catalog
}

func newWorld(t *testing.T) *world {
	w := &world{catalog: admission.NewCatalog(nil, nil, nil)}
	w.add(way{name: "off line", create: func(_ context.Context, pod *v1.Pod) (*v1.Pod, error) {
		stored, err := admission.Create(admission.Config{}, w.catalog, pod)
		if err != nil {
			return nil, admission.StatusError(pod, err)
		}
		return stored, nil
	}, node: func(_ context.Context, node *v1.Node) (*v1.Node, error) {
		admission.Node(node)
		admission.NoteTaintTimes(node, nil, time.Now())
		return node, nil
	}, class: func(_ context.Context, class *schedulingv1.PriorityClass) error {
		if err := admission.PriorityClass(w.catalog, class, true); err != nil {
			return err
		}
		if faults := rules.ValidatePriorityClass(class); len(faults) > 0 {
			return apierrors.NewInvalid(schedulingv1.SchemeGroupVersion.WithKind("PriorityClass").GroupKind(), class.Name, faults)
		}
		return nil
	}})
	w.cluster(t, "compiled in", false, func(*controlplane.Options) {})
	w.cluster(t, "webhook on upstream's", true, upstreams)
	w.cluster(t, "webhook on upstream's without plugins", true, upstreamsNone)
	all := w.cluster(t, "webhook on upstream's with all plugins", true, upstreamsAll)
	w.add(way{name: "upstream's plugins", upstreams: true, create: func(ctx context.Context, pod *v1.Pod) (*v1.Pod, error) {
		pod = pod.DeepCopy()
		namespace := pod.Namespace
		pod.Namespace += besides
		stored, err := all.create(ctx, pod)
		if stored != nil {
			stored.Namespace = namespace
		}
		return stored, err
	}, node: all.createNode, class: all.createClass})
	return w
}

// besides is the suffix of the namespaces that the webhook ignores.
const besides = "-besides"

func (w *world) add(way way) { w.ways = append(w.ways, way) }

func (w *world) cluster(t *testing.T, name string, hooked bool, options func(*controlplane.Options)) *cluster {
	c := start(t, options)
	if hooked {
		c.runWebhook(t, webhookOptions())
	}
	c.makeNamespace(t, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default" + besides, Labels: map[string]string{webhook.OptOutLabel: "disabled"}}})
	w.clusters = append(w.clusters, c)
	w.add(way{name: name, create: c.create, node: c.createNode, class: c.createClass})
	return c
}

// create creates a pod, deletes it, and returns the created pod.
func (c *cluster) create(ctx context.Context, pod *v1.Pod) (*v1.Pod, error) {
	pods := c.api.CoreV1().Pods(pod.Namespace)
	stored, err := pods.Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return stored, pods.Delete(ctx, stored.Name, *metav1.NewDeleteOptions(0))
}

func (c *cluster) createNode(ctx context.Context, node *v1.Node) (*v1.Node, error) {
	stored, err := c.api.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return stored, c.api.CoreV1().Nodes().Delete(ctx, node.Name, metav1.DeleteOptions{})
}

func (c *cluster) createClass(ctx context.Context, class *schedulingv1.PriorityClass) error {
	classes := c.api.SchedulingV1().PriorityClasses()
	if _, err := classes.Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return err
	}
	return classes.Delete(ctx, class.Name, metav1.DeleteOptions{})
}

// taints formats the node's taints, with "now" for each time, or the refusal.
func taints(node *v1.Node, err error) string {
	if err != nil {
		return refused + words(err)
	}
	var out strings.Builder
	for _, taint := range node.Spec.Taints {
		since := ""
		if taint.TimeAdded != nil {
			since = " since now"
		}
		fmt.Fprintf(&out, "%s%s\n", taint.ToString(), since)
	}
	return out.String()
}

func parse(t testing.TB, text string, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
}

func (w *world) have(t *testing.T, text string) {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal([]byte(text), &kind); err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	switch kind.Kind {
	case "Namespace":
		var namespace v1.Namespace
		parse(t, text, &namespace)
		w.catalog.Namespaces[namespace.Name] = &namespace
		for _, c := range w.clusters {
			c.makeNamespace(t, &namespace)
			alone := namespace.DeepCopy()
			alone.Name += besides
			alone.Labels = map[string]string{webhook.OptOutLabel: "disabled"}
			c.makeNamespace(t, alone)
		}
	case "PriorityClass":
		var class schedulingv1.PriorityClass
		parse(t, text, &class)
		w.catalog.PriorityClasses[class.Name] = &class
		for _, c := range w.clusters {
			_, err := c.api.SchedulingV1().PriorityClasses().Create(t.Context(), &class, metav1.CreateOptions{})
			must(err)
		}
	case "RuntimeClass":
		var class nodev1.RuntimeClass
		parse(t, text, &class)
		w.catalog.RuntimeClasses[class.Name] = &class
		for _, c := range w.clusters {
			_, err := c.api.NodeV1().RuntimeClasses().Create(t.Context(), &class, metav1.CreateOptions{})
			must(err)
		}
	default:
		t.Fatalf("unknown kind %q", kind.Kind)
	}
}

func (w *world) create(t *testing.T, d *datadriven.TestData) string {
	var pod v1.Pod
	parse(t, d.Input, &pod)
	if pod.Name == "" {
		pod.Name = "p"
	}
	if pod.Namespace == "" {
		pod.Namespace = "default"
	}
	// Without a token, the pod has no volume with a random name.
	pod.Spec.AutomountServiceAccountToken = new(bool)
	return shown(t, w.agreed(t, d, func(way way) string { return outcome(way.create(t.Context(), pod.DeepCopy())) }), d)
}

// agreed returns the result of the first way, and requires the same result from all other ways.
func (w *world) agreed(t *testing.T, d *datadriven.TestData, try func(way) string) string {
	var want string
	for i, way := range w.ways {
		if way.upstreams && d.HasArg("berth") {
			continue
		}
		var got string
		// Caches may lag briefly, so a difference only counts if it persists.
		for range 100 {
			if got = try(way); i == 0 || got == want {
				break
			}
		}
		if i == 0 {
			want = got
		} else if got != want && !(d.HasArg("better") && strings.HasPrefix(got, refused) && strings.Contains(want, strings.TrimPrefix(got, refused))) {
			t.Errorf("%s: %s and %s differ:\n%s\n%s", d.Pos, w.ways[0].name, way.name, want, got)
		}
	}
	return want
}

// refused is the prefix of the outcome of a rejected object.
const refused = "refused: "

// outcome formats the pod as JSON without its status and unique metadata, or the refusal.
func outcome(pod *v1.Pod, err error) string {
	if err != nil {
		return refused + words(err)
	}
	pod = pod.DeepCopy()
	pod.UID, pod.ResourceVersion, pod.CreationTimestamp, pod.ManagedFields, pod.Generation = "", "", metav1.Time{}, nil, 0
	pod.Status = v1.PodStatus{}
	data, err := json.Marshal(pod)
	if err != nil {
		return "error: " + err.Error()
	}
	return string(data)
}

var (
	// deniedBy matches the prefix that the API server adds to a webhook's message.
	deniedBy = regexp.MustCompile(`^admission webhook "[^"]*" denied the request: `)
	// forbidden matches the prefix that the API server adds to the messages of most plugins.
	forbidden = regexp.MustCompile(`^pods "[^"]*" is forbidden: `)
)

func words(err error) string {
	return forbidden.ReplaceAllString(deniedBy.ReplaceAllString(err.Error(), ""), "")
}

// shown formats the fields of the pod's spec that the test data selects, with a line per list item.
func shown(t *testing.T, outcome string, d *datadriven.TestData) string {
	var pod struct {
		Spec map[string]any
	}
	if strings.HasPrefix(outcome, refused) || strings.HasPrefix(outcome, "error") {
		return outcome
	}
	if err := json.Unmarshal([]byte(outcome), &pod); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, arg := range d.CmdArgs {
		if arg.Key != "show" {
			continue
		}
		for _, field := range arg.Vals {
			list, isList := pod.Spec[field].([]any)
			if !isList {
				list = []any{pod.Spec[field]}
			}
			for _, item := range list {
				line, err := json.Marshal(item)
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(&out, "%s: %s\n", field, line)
			}
		}
	}
	return out.String()
}
