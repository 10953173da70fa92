// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2edeploy

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/deploy"
	"github.com/berth-k8s/berth/test/internal/nightly"
)

// TestTheAPIServerTakesEveryManifest verifies by dry runs that the API server accepts each
// rendering of the chart, and each kustomization built by stock kubectl, without warnings: about
// deprecated versions, unknown fields, or violations of the restricted pod security standard.
func TestTheAPIServerTakesEveryManifest(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.prepare()
	renders, err := filepath.Glob("../../deploy/pack/testdata/*.yaml")
	if err != nil || len(renders) < 4 {
		t.Fatalf("renders: %v (%v)", renders, err)
	}
	tries := map[string][]string{}
	for _, file := range renders {
		tries[file] = []string{"-f", file}
	}
	for _, overlay := range []string{"second-scheduler", "replace-default"} {
		folder := filepath.Join("../../deploy/kustomize/overlays", overlay)
		tries[folder] = []string{"-k", folder}
	}
	for name, from := range tries {
		out, err := c.tryKubectl("", append([]string{"apply", "--server-side", "--dry-run=server", "--validate=strict"}, from...)...)
		if err != nil || strings.Contains(out, "Warning") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// TestInstalledAndTakenAway verifies with stock kubectl that the manifests can be applied, switched
// between running alongside kube-scheduler and replacing it, and deleted, and that no objects
// remain.
func TestInstalledAndTakenAway(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	c := newCluster(t)
	before := c.everything()
	overlay := func(name string) string { return filepath.Join("../../deploy/kustomize/overlays", name) }
	c.kubectl("apply", "-k", overlay("second-scheduler"))
	c.kubectl("apply", "-k", overlay("replace-default"))
	lease := func() string {
		return c.kubectl("get", "configmap", "-n", deploy.Namespace, "berth-scheduler", "-o", "yaml")
	}
	if !strings.Contains(lease(), "schedulerName: default-scheduler") {
		t.Errorf("the configuration is not that of the overlay:\n%s", lease())
	}
	c.kubectl("apply", "-k", overlay("second-scheduler"))
	if !strings.Contains(lease(), "schedulerName: berth-scheduler") {
		t.Errorf("the configuration has not gone back:\n%s", lease())
	}
	c.kubectl("delete", "-k", overlay("replace-default"), "--ignore-not-found")
	c.kubectl("delete", "-k", overlay("second-scheduler"), "--ignore-not-found", "--timeout=90s")
	eventually(t, func() error {
		if left := strings.TrimSpace(strings.ReplaceAll(c.everything(), before, "")); left != "" {
			return fmt.Errorf("is left: %s (there was %s)", left, before)
		}
		return nil
	})
}

// everything returns the names of all objects that belong to an installation.
func (c *cluster) everything() string {
	c.Helper()
	return c.kubectl("get", "clusterroles,clusterrolebindings,roles,rolebindings,serviceaccounts,configmaps,deployments,poddisruptionbudgets,networkpolicies,services,mutatingwebhookconfigurations,validatingwebhookconfigurations,namespaces",
		"-A", "-o", "name", "-l", "app.kubernetes.io/part-of=berth")
}

// TestWhatTheManifestsSayOfPods verifies the security settings, probes and requests of the pods in
// all Deployments, and that each Deployment has a NetworkPolicy.
func TestWhatTheManifestsSayOfPods(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	c := newCluster(t)
	c.install("everything")
	deployments, err := c.api.AppsV1().Deployments(deploy.Namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(deployments.Items) != 4 {
		t.Fatalf("%d deployments (%v)", len(deployments.Items), err)
	}
	policies, err := c.api.NetworkingV1().NetworkPolicies(deploy.Namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(policies.Items) != 4 {
		t.Errorf("%d network policies, want one for each (%v)", len(policies.Items), err)
	}
	for _, d := range deployments.Items {
		spec := d.Spec.Template.Spec
		container := spec.Containers[0]
		security := container.SecurityContext
		switch {
		case len(spec.Containers) != 1, spec.ServiceAccountName != d.Name,
			!*spec.SecurityContext.RunAsNonRoot, spec.SecurityContext.SeccompProfile.Type != "RuntimeDefault",
			!*security.ReadOnlyRootFilesystem, *security.AllowPrivilegeEscalation, fmt.Sprint(security.Capabilities.Drop) != "[ALL]",
			spec.HostNetwork, spec.HostPID, container.ReadinessProbe == nil, container.Resources.Requests.Cpu().IsZero(), container.Resources.Requests.Memory().IsZero():
			t.Errorf("%s: %+v", d.Name, spec)
		}
		for _, volume := range spec.Volumes {
			if volume.ConfigMap == nil {
				t.Errorf("%s has a volume that is no ConfigMap: %+v", d.Name, volume)
			}
		}
		if d.Name == "berth-ui" {
			continue
		}
		if *d.Spec.Replicas != 2 || spec.PriorityClassName != "system-cluster-critical" || container.LivenessProbe == nil {
			t.Errorf("%s: %d replicas, priority %q, liveness %v", d.Name, *d.Spec.Replicas, spec.PriorityClassName, container.LivenessProbe)
		}
		if budget, err := c.api.PolicyV1().PodDisruptionBudgets(deploy.Namespace).Get(t.Context(), d.Name, metav1.GetOptions{}); err != nil || budget.Spec.MaxUnavailable.IntValue() != 1 {
			t.Errorf("%s: budget %+v (%v)", d.Name, budget, err)
		}
	}
}
