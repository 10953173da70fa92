package webhook

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
)

// TestNothingCanLockACluster holds whatever the flags say.
func TestNothingCanLockACluster(t *testing.T) {
	o := DefaultOptions()
	if o.FailurePolicy != string(v1.Ignore) {
		t.Error("by default pods wait for the webhook")
	}
	o.FailurePolicy, o.Namespace = string(v1.Fail), "own"
	selects := func(selector *metav1.LabelSelector, namespace string, more labels.Set) bool {
		s, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil {
			t.Fatal(err)
		}
		return s.Matches(labels.Merge(labels.Set{corev1.LabelMetadataName: namespace}, more))
	}
	check := func(name string, rules []v1.RuleWithOperations, policy *v1.FailurePolicyType, selector *metav1.LabelSelector, timeout *int32, effects *v1.SideEffectClass) {
		if len(rules) != 1 || len(rules[0].Resources) != 1 || strings.ContainsAny(rules[0].Resources[0], "*/") {
			t.Errorf("%s: rules %v: must be about one kind of object and no subresource", name, rules)
		}
		if *timeout > 2 || *effects != v1.SideEffectClassNone {
			t.Errorf("%s: timeout %d s, side effects %s", name, *timeout, *effects)
		}
		switch rules[0].Resources[0] {
		case "pods":
			for _, namespace := range []string{"kube-system", "kube-node-lease", "own"} {
				if selects(selector, namespace, nil) {
					t.Errorf("%s: is asked about pods in %s", name, namespace)
				}
			}
			if selects(selector, "any", labels.Set{OptOutLabel: "disabled"}) || !selects(selector, "any", nil) {
				t.Errorf("%s: selects %v", name, selector)
			}
		default:
			if *policy != v1.Ignore {
				t.Errorf("%s: %v depend on the webhook", name, rules[0].Resources)
			}
		}
	}
	for _, w := range o.mutatingConfig(443, nil).Webhooks {
		check(w.Name, w.Rules, w.FailurePolicy, w.NamespaceSelector, w.TimeoutSeconds, w.SideEffects)
		if *w.ReinvocationPolicy != v1.IfNeededReinvocationPolicy {
			t.Errorf("%s: is not asked about what later webhooks add", w.Name)
		}
	}
	for _, w := range o.validatingConfig(443, nil).Webhooks {
		check(w.Name, w.Rules, w.FailurePolicy, w.NamespaceSelector, w.TimeoutSeconds, w.SideEffects)
	}
}

func TestOptionsNameTheFlagThatIsWrong(t *testing.T) {
	for flag, change := range map[string]func(*Options){
		"--bind-address: ":                         func(o *Options) { o.Address = "9443" },
		"--namespace ":                             func(o *Options) { o.Namespace = "" },
		"--failure-policy: ":                       func(o *Options) { o.FailurePolicy = "Maybe" },
		"--timeout: ":                              func(o *Options) { o.Timeout = 31e9 },
		"--certificate-lifetime: ":                 func(o *Options) { o.CertificateLifetime = 1 },
		"--shutdown-delay: ":                       func(o *Options) { o.ShutdownDelay = -1 },
		"--default-not-ready-toleration-seconds: ": func(o *Options) { o.Rules.NotReadySeconds = new(int64(-1)) },
	} {
		o := DefaultOptions()
		if err := o.Validate(); err != nil {
			t.Fatal(err)
		}
		change(&o)
		if err := o.Validate(); err == nil || !strings.HasPrefix(err.Error(), flag) {
			t.Errorf("want %s, got %v", flag, err)
		}
	}
}

// TestManifestsFitTogether decodes them strictly and follows the names in them.
func TestManifestsFitTogether(t *testing.T) {
	o := DefaultOptions()
	o.Namespace, o.FailurePolicy = "elsewhere", string(v1.Fail)
	*o.Rules.UnreachableSeconds = 30
	var text bytes.Buffer
	if err := o.WriteManifests(&text, "registry.example.com/berth:v1"); err != nil {
		t.Fatal(err)
	}
	decoder := serializer.NewCodecFactory(clientscheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	documents := utilyaml.NewDocumentDecoder(io.NopCloser(&text))
	objects := map[string]runtime.Object{}
	for {
		document := make([]byte, 1<<20)
		n, err := documents.Read(document)
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		object, kind, err := decoder.Decode(document[:n], nil, nil)
		if err != nil {
			t.Fatalf("%v in\n%s", err, document[:n])
		}
		if meta := object.(metav1.Object); kind.Kind != "Namespace" && !strings.HasPrefix(kind.Kind, "Cluster") && meta.GetNamespace() != o.Namespace {
			t.Errorf("%s %s is in namespace %q", kind.Kind, meta.GetName(), meta.GetNamespace())
		}
		objects[kind.Kind] = object
	}
	deployment := objects["Deployment"].(*appsv1.Deployment)
	container := deployment.Spec.Template.Spec.Containers[0]
	service := objects["Service"].(*corev1.Service)
	if service.Name != o.Service || !labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(deployment.Spec.Template.Labels)) {
		t.Error("the Service does not lead to the Deployment")
	}
	if !slices.ContainsFunc(container.Ports, func(p corev1.ContainerPort) bool {
		return p.Name == service.Spec.Ports[0].TargetPort.StrVal && p.ContainerPort == 9443
	}) || service.Spec.Ports[0].Port != *o.clientConfig("", 0, nil).Service.Port {
		t.Error("the Service leads to another port than the webhook's")
	}
	flags, read := pflag.NewFlagSet("webhook", pflag.ContinueOnError), DefaultOptions()
	read.AddFlags(flags)
	if err := flags.Parse(container.Args[1:]); err != nil || container.Args[0] != "webhook" {
		t.Fatalf("%v: %v", container.Args, err)
	}
	if read.Namespace != o.Namespace || read.FailurePolicy != o.FailurePolicy || *read.Rules.UnreachableSeconds != 30 {
		t.Errorf("the Deployment runs the webhook with %v", container.Args)
	}
	for _, kind := range []string{"Role", "ClusterRole"} {
		rules, _ := objects[kind].(*rbacv1.ClusterRole)
		if kind == "Role" {
			rules = &rbacv1.ClusterRole{Rules: objects[kind].(*rbacv1.Role).Rules}
		}
		for _, rule := range rules.Rules {
			if slices.Contains(slices.Concat(rule.Verbs, rule.Resources, rule.APIGroups), "*") {
				t.Errorf("%s allows everything: %v", kind, rule)
			}
		}
	}
}
