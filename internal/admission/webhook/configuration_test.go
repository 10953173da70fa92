// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"crypto/x509"
	"io"
	"maps"
	"os"
	"path/filepath"
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
	"k8s.io/client-go/util/cert"
)

// TestNothingCanLockACluster verifies, for all flags, that the webhook cannot lock a cluster.
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

// printed strictly decodes the manifests that WriteManifests writes for the options, and returns
// them by kind.
func printed(t *testing.T, o *Options) map[string]runtime.Object {
	t.Helper()
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
	return objects
}

// flagsOf parses the Deployment's flags into options.
func flagsOf(t *testing.T, deployment *appsv1.Deployment) Options {
	t.Helper()
	args := deployment.Spec.Template.Spec.Containers[0].Args
	flags, read := pflag.NewFlagSet("webhook", pflag.ContinueOnError), DefaultOptions()
	read.AddFlags(flags)
	if err := flags.Parse(args[1:]); err != nil || args[0] != "webhook" {
		t.Fatalf("%v: %v", args, err)
	}
	return read
}

// TestManifestsFitTogether verifies the references between the manifests.
func TestManifestsFitTogether(t *testing.T) {
	o := DefaultOptions()
	o.Namespace, o.FailurePolicy = "elsewhere", string(v1.Fail)
	*o.Rules.UnreachableSeconds = 30
	objects := printed(t, &o)
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
	read := flagsOf(t, deployment)
	if read.Namespace != o.Namespace || read.FailurePolicy != o.FailurePolicy || *read.Rules.UnreachableSeconds != 30 ||
		read.AdvertiseHost != "" || read.ClientCAFile != "" {
		t.Errorf("the Deployment runs the webhook with %v", container.Args)
	}
	o.AdvertiseHost = "webhook.example.com"
	if read := flagsOf(t, printed(t, &o)["Deployment"].(*appsv1.Deployment)); read.AdvertiseHost != o.AdvertiseHost {
		t.Errorf("API servers are to reach the Deployment at %q", read.AdvertiseHost)
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

// TestPrintedWebhookAnswersOnlyWhoHasACertificate verifies that manifests written with
// --client-ca-file make the webhook require client certificates: its container has the certificates
// of the local file, and no other content of that file.
func TestPrintedWebhookAnswersOnlyWhoHasACertificate(t *testing.T) {
	own, key, err := cert.GenerateSelfSignedCertKey("api-servers", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	o := DefaultOptions()
	o.ClientCAFile = filepath.Join(t.TempDir(), "ca.pem")
	for name, text := range map[string][]byte{"no file": nil, "no certificate": key} {
		if text != nil {
			if err := os.WriteFile(o.ClientCAFile, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var out bytes.Buffer
		if err := o.WriteManifests(&out, "i"); err == nil || !strings.HasPrefix(err.Error(), "--client-ca-file: ") || out.Len() > 0 {
			t.Errorf("%s: %v, after %d bytes", name, err, out.Len())
		}
		_ = os.Remove(o.ClientCAFile)
	}

	if err := os.WriteFile(o.ClientCAFile, slices.Concat(key, own), 0o600); err != nil {
		t.Fatal(err)
	}
	objects := printed(t, &o)
	deployment := objects["Deployment"].(*appsv1.Deployment)
	bundle, ok := objects["ConfigMap"].(*corev1.ConfigMap)
	if !ok {
		t.Fatal("no ConfigMap is printed")
	}
	pod := deployment.Spec.Template.Spec
	if len(pod.Volumes) != 1 || pod.Volumes[0].ConfigMap.Name != bundle.Name ||
		len(pod.Containers[0].VolumeMounts) != 1 || pod.Containers[0].VolumeMounts[0].Name != pod.Volumes[0].Name {
		t.Fatalf("the ConfigMap %s is not mounted: %v, %v", bundle.Name, pod.Volumes, pod.Containers[0].VolumeMounts)
	}
	file, below := strings.CutPrefix(flagsOf(t, deployment).ClientCAFile, pod.Containers[0].VolumeMounts[0].MountPath+"/")
	want, err := cert.ParseCertsPEM(own)
	if err != nil {
		t.Fatal(err)
	}
	got, err := cert.ParseCertsPEM([]byte(bundle.Data[file]))
	if err != nil || !below || !slices.EqualFunc(got, want, (*x509.Certificate).Equal) || strings.Contains(bundle.Data[file], "PRIVATE") {
		t.Errorf("%v: the file is\n%s", err, bundle.Data[file])
	}
	before := deployment.Spec.Template.Annotations
	if own, _, err = cert.GenerateSelfSignedCertKey("others", nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(o.ClientCAFile, own, 0o600); err != nil {
		t.Fatal(err)
	}
	if maps.Equal(printed(t, &o)["Deployment"].(*appsv1.Deployment).Spec.Template.Annotations, before) {
		t.Error("another CA does not replace the replicas, which go on with the old one")
	}
}
