// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package components

import (
	"net"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/deploy"
)

var all = []string{"kueue", "expander"}

// of returns the objects of a type.
func of[T any](t *testing.T, component string) (found []T) {
	t.Helper()
	objects, err := Objects(component)
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range objects {
		if object, ok := object.(T); ok {
			found = append(found, object)
		}
	}
	return found
}

// one returns the only object of a type.
func one[T any](t *testing.T, component string) T {
	t.Helper()
	found := of[T](t, component)
	if len(found) != 1 {
		t.Fatalf("%s: %d objects of a type, want one", component, len(found))
	}
	return found[0]
}

// flag returns the value of a flag.
func flag(t *testing.T, component, name string) string {
	t.Helper()
	args, err := Arguments(component)
	if err != nil {
		t.Fatal(err)
	}
	for _, arg := range args {
		if value, ok := strings.CutPrefix(arg, "--"+name+"="); ok {
			return value
		}
	}
	t.Fatalf("%s: no --%s", component, name)
	return ""
}

// TestPodsAreRestricted verifies the requirements of the Pod Security Standard "restricted", which
// the namespace enforces.
func TestPodsAreRestricted(t *testing.T) {
	for _, component := range all {
		pod := one[*appsv1.Deployment](t, component).Spec.Template.Spec
		if s := pod.SecurityContext; s == nil || !ptr.Deref(s.RunAsNonRoot, false) || s.SeccompProfile == nil ||
			s.SeccompProfile.Type != v1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s: the security context is %v", component, s)
		}
		if pod.HostNetwork || pod.HostPID || pod.HostIPC {
			t.Errorf("%s: uses a namespace of the node", component)
		}
		for _, volume := range pod.Volumes {
			if volume.Secret == nil && volume.ConfigMap == nil {
				t.Errorf("%s: volume %s is neither a Secret nor a ConfigMap", component, volume.Name)
			}
		}
		for _, c := range pod.Containers {
			s := c.SecurityContext
			if s == nil || ptr.Deref(s.AllowPrivilegeEscalation, true) || !ptr.Deref(s.ReadOnlyRootFilesystem, false) ||
				ptr.Deref(s.Privileged, false) || s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []v1.Capability{"ALL"}) ||
				len(s.Capabilities.Add) > 0 {
				t.Errorf("%s: the security context of the container is %v", component, s)
			}
			if c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() {
				t.Errorf("%s: resources are missing: %v", component, c.Resources)
			}
		}
	}
}

// TestPortsAreServed verifies that the program listens on the ports of probes, the Service and the
// policy, on all addresses.
func TestPortsAreServed(t *testing.T) {
	for component, listens := range map[string]map[string]string{
		"kueue":    {"health": "health-address"},
		"expander": {"health": "health-address", "grpc": "address"},
	} {
		d := one[*appsv1.Deployment](t, component)
		c := d.Spec.Template.Spec.Containers[0]
		served := map[string]int32{}
		for name, with := range listens {
			host, port, err := net.SplitHostPort(flag(t, component, with))
			if err != nil || host != "" {
				t.Errorf("%s: --%s is of the host %q: want all addresses (%v)", component, with, host, err)
			}
			at := slices.IndexFunc(c.Ports, func(p v1.ContainerPort) bool { return p.Name == name })
			if at < 0 || intstr.Parse(port).IntVal != c.Ports[at].ContainerPort {
				t.Errorf("%s: port %s is not that of --%s", component, name, with)
				continue
			}
			served[name] = c.Ports[at].ContainerPort
		}
		if len(c.Ports) != len(served) {
			t.Errorf("%s: ports are %v, the program listens on %v", component, c.Ports, served)
		}
		for probe, page := range map[*v1.Probe]string{c.LivenessProbe: "/healthz", c.ReadinessProbe: "/readyz"} {
			if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != page || probe.HTTPGet.Port.StrVal != "health" {
				t.Errorf("%s: a probe is %v, want %s", component, probe, page)
			}
		}
		pod := labels.Set(d.Spec.Template.Labels)
		if !labels.SelectorFromSet(d.Spec.Selector.MatchLabels).Matches(pod) {
			t.Errorf("%s: the Deployment does not select its pods", component)
		}
		for _, s := range of[*v1.Service](t, component) {
			if !labels.SelectorFromSet(s.Spec.Selector).Matches(pod) || served[s.Spec.Ports[0].TargetPort.StrVal] != s.Spec.Ports[0].Port {
				t.Errorf("%s: the Service is %v", component, s.Spec)
			}
		}
		policy := one[*networkingv1.NetworkPolicy](t, component)
		if !labels.SelectorFromSet(policy.Spec.PodSelector.MatchLabels).Matches(pod) {
			t.Errorf("%s: the policy does not select the pods", component)
		}
		open := map[string]bool{}
		for _, rule := range policy.Spec.Ingress {
			open[rule.Ports[0].Port.StrVal] = true
		}
		if len(open) != len(served) {
			t.Errorf("%s: the policy opens %v, the program listens on %v", component, open, served)
		}
	}
}

// TestFilesAreMounted verifies that each file in the arguments is in a volume, and that the key of
// berth serve is in none.
func TestFilesAreMounted(t *testing.T) {
	for _, component := range all {
		pod := one[*appsv1.Deployment](t, component).Spec.Template.Spec
		used := map[string]bool{}
		for _, arg := range pod.Containers[0].Args {
			_, file, _ := strings.Cut(arg, "=")
			if !strings.HasPrefix(file, "/") {
				continue
			}
			at := slices.IndexFunc(pod.Containers[0].VolumeMounts, func(m v1.VolumeMount) bool { return m.MountPath == path.Dir(file) })
			if at < 0 {
				t.Errorf("%s: %s is in no volume", component, arg)
				continue
			}
			used[pod.Containers[0].VolumeMounts[at].Name] = true
		}
		if len(used) != len(pod.Volumes) || len(used) != len(pod.Containers[0].VolumeMounts) {
			t.Errorf("%s: %v are used, of the volumes %v", component, used, pod.Volumes)
		}
		for _, volume := range pod.Volumes {
			if volume.Name == "serve-ca" && (volume.Secret.SecretName != "berth-serve-tls" || len(volume.Secret.Items) != 1 ||
				volume.Secret.Items[0].Key != "ca.crt" || volume.Secret.Items[0].Path != path.Base(flag(t, component, "berth-ca-file"))) {
				t.Errorf("%s: the volume of the CA is %v", component, volume.Secret)
			}
		}
	}
}

// TestTheQueryServiceIsReached verifies that the address belongs to the component serve, and that
// the policy allows it and DNS.
func TestTheQueryServiceIsReached(t *testing.T) {
	text, err := os.ReadFile("../../deploy/kustomize/components/serve/serve.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var service v1.Service
	var pods appsv1.Deployment
	for _, document := range strings.Split(string(text), "---\n") {
		switch {
		case strings.Contains(document, "\nkind: Service\n"):
			err = yaml.UnmarshalStrict([]byte(document), &service)
		case strings.Contains(document, "\nkind: Deployment\n"):
			err = yaml.UnmarshalStrict([]byte(document), &pods)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, component := range all {
		at, err := url.Parse(flag(t, component, "berth-url"))
		if err != nil || at.Scheme != "https" || at.Hostname() != service.Name+"."+service.Namespace+".svc" ||
			intstr.Parse(at.Port()).IntVal != service.Spec.Ports[0].Port {
			t.Errorf("%s: asks at %v, the service is %s/%s (%v)", component, at, service.Namespace, service.Name, err)
		}
		serves, resolves := false, 0
		for _, rule := range one[*networkingv1.NetworkPolicy](t, component).Spec.Egress {
			for _, port := range rule.Ports {
				switch {
				case port.Port.IntVal == 53 && len(rule.To) == 0:
					resolves++
				case port.Port.IntVal == pods.Spec.Template.Spec.Containers[0].Ports[0].ContainerPort && len(rule.To) == 1:
					serves = labels.SelectorFromSet(rule.To[0].PodSelector.MatchLabels).Matches(labels.Set(pods.Spec.Template.Labels))
				}
			}
		}
		if !serves || resolves != 2 {
			t.Errorf("%s: the policy does not allow the query service, or DNS", component)
		}
	}
}

// TestTheExpanderReadsNothing verifies that its account has only the permissions required by berth
// serve.
func TestTheExpanderReadsNothing(t *testing.T) {
	text, err := Text("expander")
	if err != nil {
		t.Fatal(err)
	}
	rights, err := deploy.Granted(text, deploy.Namespace, "berth-expander")
	want := []deploy.Right{{Verb: "list", Resource: "pods"}, {Verb: "list", Resource: "nodes"}}
	if err != nil || !slices.Equal(rights, want) {
		t.Errorf("it may %v, want %v (%v)", rights, want, err)
	}
}
