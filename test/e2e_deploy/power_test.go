// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2edeploy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/deploy"
)

// deed is an attack that needs a permission.
type deed struct {
	what string
	authorizationv1.ResourceAttributes
}

func deedOf(what, verb, group, resource string) deed {
	resource, sub, _ := strings.Cut(resource, "/")
	return deed{what, authorizationv1.ResourceAttributes{Verb: verb, Group: group, Resource: resource, Subresource: sub}}
}

// deeds lists attacks by the holder of a token that lead to more privileges or to the data of other
// users; see docs/concepts/threat-model.md.
var deeds = []deed{
	deedOf("read secrets", "get", "", "secrets"),
	deedOf("list secrets", "list", "", "secrets"),
	deedOf("write secrets", "update", "", "secrets"),
	deedOf("read config maps", "get", "", "configmaps"),
	deedOf("create pods", "create", "", "pods"),
	deedOf("change pods", "update", "", "pods"),
	deedOf("change pods in place", "patch", "", "pods"),
	deedOf("add containers", "update", "", "pods/ephemeralcontainers"),
	deedOf("run commands in pods", "create", "", "pods/exec"),
	deedOf("attach to pods", "create", "", "pods/attach"),
	deedOf("reach into pods", "create", "", "pods/portforward"),
	deedOf("read logs", "get", "", "pods/log"),
	deedOf("reach kubelets", "get", "", "nodes/proxy"),
	deedOf("delete nodes", "delete", "", "nodes"),
	deedOf("make tokens", "create", "", "serviceaccounts/token"),
	deedOf("be somebody else", "impersonate", "", "users"),
	deedOf("be another account", "impersonate", "", "serviceaccounts"),
	deedOf("grant rights", "create", "rbac.authorization.k8s.io", "clusterrolebindings"),
	deedOf("grant rights in a namespace", "create", "rbac.authorization.k8s.io", "rolebindings"),
	deedOf("widen roles", "escalate", "rbac.authorization.k8s.io", "clusterroles"),
	deedOf("bind roles", "bind", "rbac.authorization.k8s.io", "clusterroles"),
	deedOf("run workloads", "create", "apps", "deployments"),
	deedOf("run daemons", "create", "apps", "daemonsets"),
	deedOf("sign certificates", "update", "certificates.k8s.io", "certificatesigningrequests/approval"),
	deedOf("extend the API", "create", "apiregistration.k8s.io", "apiservices"),
	deedOf("intercept requests", "create", "admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
	deedOf("place pods", "create", "", "pods/binding"),
	deedOf("delete pods", "delete", "", "pods"),
	deedOf("write conditions of pods", "patch", "", "pods/status"),
	deedOf("taint nodes", "patch", "", "nodes"),
	deedOf("write conditions of nodes", "patch", "", "nodes/status"),
	deedOf("bind volumes", "update", "", "persistentvolumes"),
	deedOf("allocate devices", "update", "resource.k8s.io", "resourceclaims/status"),
	deedOf("do anything", "*", "*", "*"),
}

// powers lists, by component, the deeds that the component's work requires in the whole cluster. No
// other deed may be permitted.
var powers = map[string][]string{
	"berth-scheduler":  {"place pods", "delete pods", "write conditions of pods", "bind volumes", "allocate devices"},
	"berth-controller": {"delete pods", "write conditions of pods", "taint nodes", "write conditions of nodes"},
	"berth-webhook":    {"intercept requests"},
	"berth-ui":         {},
}

// TestWhatATokenIsGoodFor verifies that the token of a component permits the deeds in powers, and
// no other deed.
func TestWhatATokenIsGoodFor(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.install("everything")
	for account, may := range powers {
		client := kubernetes.NewForConfigOrDie(c.as(c.token(account)))
		eventually(t, func() error { // the authorizer observes new roles after a short delay
			for _, d := range deeds {
				for _, namespace := range []string{"", "kube-system", deploy.Namespace} {
					attributes := d.ResourceAttributes
					attributes.Namespace = namespace
					review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{
						Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &attributes},
					}, metav1.CreateOptions{})
					if err != nil {
						return err
					}
					if want := slices.Contains(may, d.what); review.Status.Allowed != want {
						return fmt.Errorf("%s can %s in %q: %v, want %v", account, d.what, namespace, review.Status.Allowed, want)
					}
				}
			}
			return nil
		})
	}
}

// TestClaimsNeedTheRightToBind verifies that the scheduler needs a permission that it never uses
// directly: since v1.36 the API server requires permission for resourceclaims/binding of users who
// allocate and reserve devices.
func TestClaimsNeedTheRightToBind(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	granted, err := deploy.RightsOf(deploy.Scheduler)
	if err != nil {
		t.Fatal(err)
	}
	var rules []rbacv1.PolicyRule
	for _, right := range granted {
		if right.Group == "resource.k8s.io" && right.Resource != "resourceclaims/binding" {
			rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{right.Group}, Resources: []string{right.Resource}, Verbs: []string{right.Verb}})
		}
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "almost"}, Rules: rules}
	if role, err = c.api.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.kubectl("create", "serviceaccount", "almost")
	c.kubectl("create", "clusterrolebinding", "almost", "--clusterrole=almost", "--serviceaccount=default:almost")
	claims := c.api.ResourceV1().ResourceClaims("default")
	claim, err := claims.Create(t.Context(), &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "claim", Finalizers: []string{resourcev1.Finalizer}},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu"},
		}}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	claim.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{{
		Request: "gpu", Driver: "gpu.example.com", Pool: "node-1", Device: "gpu-0",
	}}}}
	claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "1"}}
	client := kubernetes.NewForConfigOrDie(c.as(c.tokenIn("default", "almost")))
	allocate := func() error {
		_, err := client.ResourceV1().ResourceClaims("default").UpdateStatus(t.Context(), claim, metav1.UpdateOptions{})
		return err
	}
	eventually(t, func() error {
		if err := allocate(); !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "resourceclaims/binding") {
			return fmt.Errorf("without the right: %w", err)
		}
		return nil
	})
	role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{"resource.k8s.io"}, Resources: []string{"resourceclaims/binding"}, Verbs: []string{"update", "patch"}})
	if _, err := c.api.RbacV1().ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, allocate)
}
