// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane_test

import (
	"crypto/tls"
	"path/filepath"
	"slices"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-k8s/berth/controlplane"
)

// TestComponentsAreNotAdministrators verifies that the kubeconfigs of Berth's processes permit only
// their work, and are valid for a year at most.
func TestComponentsAreNotAdministrators(t *testing.T) {
	dir := t.TempDir()
	controlplane.Start(t, func(o *controlplane.Options) { o.DataDir = dir })
	may := map[string][]authorizationv1.ResourceAttributes{
		"scheduler":  {{Verb: "create", Resource: "pods", Subresource: "binding"}, {Verb: "watch", Resource: "nodes"}},
		"controller": {{Verb: "delete", Resource: "pods"}, {Verb: "patch", Resource: "nodes"}},
		"nodes":      {{Verb: "create", Resource: "nodes"}, {Verb: "patch", Resource: "pods", Subresource: "status"}},
		"ui":         {{Verb: "watch", Resource: "pods"}},
		"serve":      {{Verb: "watch", Resource: "pods"}, {Verb: "create", Group: "authentication.k8s.io", Resource: "tokenreviews"}},
	}
	lease := func(verb, namespace, name string) authorizationv1.ResourceAttributes {
		return authorizationv1.ResourceAttributes{Verb: verb, Group: "coordination.k8s.io", Resource: "leases", Namespace: namespace, Name: name}
	}
	may["scheduler"] = append(may["scheduler"], lease("update", "kube-system", "kube-scheduler"))
	may["controller"] = append(may["controller"], lease("update", "berth-system", "berth-controller"), lease("watch", "kube-node-lease", ""))
	may["nodes"] = append(may["nodes"], lease("create", "kube-node-lease", ""), lease("update", "kube-node-lease", "node-1"))
	others := map[string][]authorizationv1.ResourceAttributes{ // Leases of other components
		"scheduler":  {lease("update", "kube-node-lease", "node-1"), lease("update", "berth-system", "berth-controller"), lease("create", "default", ""), lease("create", "kube-node-lease", "")},
		"controller": {lease("update", "kube-node-lease", "node-1"), lease("update", "kube-system", "kube-scheduler"), lease("create", "kube-system", ""), lease("watch", "kube-system", "")},
		"nodes":      {lease("update", "kube-system", "kube-scheduler"), lease("create", "berth-system", ""), lease("delete", "kube-node-lease", "node-1")},
		"ui":         {lease("update", "kube-node-lease", "node-1"), lease("create", "default", "")},
		"serve":      {lease("update", "kube-node-lease", "node-1"), lease("create", "default", "")},
	}
	never := []authorizationv1.ResourceAttributes{
		{Verb: "update", Group: "lifecycle.k8s.io", Resource: "evictions", Subresource: "status"}, // served only with a feature gate
		{Verb: "get", Resource: "secrets"}, {Verb: "create", Resource: "pods"}, {Verb: "create", Resource: "pods", Subresource: "exec"},
		{Verb: "create", Resource: "serviceaccounts", Subresource: "token"}, {Verb: "*", Resource: "*", Group: "*"},
		{Verb: "update", Resource: "clusterroles", Group: "rbac.authorization.k8s.io"}, {Verb: "impersonate", Resource: "users"},
	}
	for name, deeds := range may {
		config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, name+".kubeconfig"))
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.X509KeyPair(config.CertData, config.KeyData)
		if err != nil {
			t.Fatal(err)
		}
		if left := time.Until(pair.Leaf.NotAfter); slices.Contains(pair.Leaf.Subject.Organization, "system:masters") || left > 366*24*time.Hour {
			t.Errorf("%s: the certificate is %v's, for %v", name, pair.Leaf.Subject, left)
		}
		client := clientFor(t, config)
		ask := func(deed authorizationv1.ResourceAttributes, want bool) {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &deed}}
			said, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
			if err != nil || said.Status.Allowed != want {
				t.Errorf("%s: %s %s/%s %s in %q: allowed %v, %v", name, deed.Verb, deed.Resource, deed.Subresource, deed.Name, deed.Namespace, said.Status.Allowed, err)
			}
		}
		for _, deed := range deeds {
			ask(deed, true)
		}
		for _, deed := range slices.Concat(never, others[name]) {
			ask(deed, false)
		}
	}
}

// TestTheControllerMayAnswerEvictionRequests verifies that eviction requests are served with the
// gate and the API version enabled, and that the controller's kubeconfig permits responding to
// them.
func TestTheControllerMayAnswerEvictionRequests(t *testing.T) {
	dir := t.TempDir()
	controlplane.Start(t, func(o *controlplane.Options) {
		o.DataDir, o.FeatureGates = dir, map[string]bool{"EvictionRequestAPI": true}
		o.RuntimeConfig = map[string]string{"lifecycle.k8s.io/v1alpha1": "true"}
	})
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "controller.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	api := clientFor(t, config).LifecycleV1alpha1()
	if _, err := api.EvictionRequests("").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	e := &lifecyclev1alpha1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "none"}}
	if _, err := api.Evictions("default").UpdateStatus(t.Context(), e, metav1.UpdateOptions{}); apierrors.IsForbidden(err) || err == nil {
		t.Errorf("of an Eviction that is not there: %v", err)
	}
}
