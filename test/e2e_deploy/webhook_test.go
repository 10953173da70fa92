// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2edeploy

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/deploy"
	"github.com/berth-k8s/berth/test/internal/nightly"
)

// TestTheWebhookWorksWithoutTheRightToRegister verifies that the webhook works with
// --register=false if an administrator creates the webhook configurations. The webhook then needs
// no permission to create them, and only updates their CA bundle.
func TestTheWebhookWorksWithoutTheRightToRegister(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	c := newCluster(t)
	c.install("second-scheduler-with-webhook")
	// Create the configurations by a webhook with the permission. The second webhook has the same
	// port.
	first := c.begin(deploy.Webhook, record(t, c.Config), webhookFlags("0")...)
	url := first.says(`ready (https://\S+)`)
	role, err := c.api.RbacV1().ClusterRoles().Get(t.Context(), "berth-webhook", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	role.Rules = without(role.Rules, "admissionregistration.k8s.io", "create")
	if _, err := c.api.RbacV1().ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	first.kill()
	c.kubectl("patch", "mutatingwebhookconfiguration", "berth-webhook", "--type=json", `-p=[{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]`)
	seen := record(t, c.Config)
	second := c.begin(deploy.Webhook, seen, append(webhookFlags(url[strings.LastIndexByte(url, ':')+1:]), "--register=false")...)
	second.says(`ready (https://\S+)`)
	eventually(t, func() error {
		configuration, err := c.api.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), "berth-webhook", metav1.GetOptions{})
		if err == nil && len(configuration.Webhooks[0].ClientConfig.CABundle) == 0 {
			err = fmt.Errorf("no authority in %s", configuration.Name)
		}
		return err
	})
	if seen.has(deploy.Right{Verb: "create", Group: "admissionregistration.k8s.io", Resource: "mutatingwebhookconfigurations"}) || len(seen.refused()) > 0 {
		t.Errorf("it asks for what it may not do: %v", seen.refused())
	}
}

func webhookFlags(port string) []string {
	return []string{"--namespace=berth-system", "--bind-address=127.0.0.1:" + port, "--health-bind-address=127.0.0.1:0", "--advertise-host=127.0.0.1", "--shutdown-delay=0s"}
}

func without(rules []rbacv1.PolicyRule, group, verb string) (left []rbacv1.PolicyRule) {
	for _, rule := range rules {
		if rule.APIGroups[0] != group || rule.Verbs[0] != verb {
			left = append(left, rule)
		}
	}
	return left
}

// TestTheWebhookIsBounded verifies that the webhook rejects invalid requests and unknown paths by
// any client, reveals nothing about the cluster except the results of its rules, and keeps running.
func TestTheWebhookIsBounded(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.install("second-scheduler-with-webhook")
	p := c.begin(deploy.Webhook, record(t, c.Config), webhookFlags("0")...)
	url := p.says(`ready (https://\S+)`)
	for _, body := range [][]byte{nil, []byte("{"), []byte(`{"kind": "AdmissionReview"}`), bytes.Repeat([]byte(" "), 17<<20)} {
		response, err := unverified.Post(url+"/mutate", "application/json", bytes.NewReader(body))
		if err != nil {
			continue // the server closed the connection while reading an oversized body
		}
		_, _ = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		if response.StatusCode != http.StatusBadRequest {
			t.Errorf("%d bytes that are no review: %s", len(body), response.Status)
		}
	}
	for _, path := range []string{"/", "/metrics", "/debug/pprof/", "/../etc/passwd", "/mutate"} {
		if body, err := getAs(url+path, ""); err == nil {
			t.Errorf("%s: %.100q", path, body)
		}
	}
	if err := c.review(url, "default", v1.PodSpec{}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// TestPlainPortsTellNoSecrets verifies that the unauthenticated ports of the controller and the
// webhook reveal no names of pods, no tokens and no certificates, and serve no profiles.
func TestPlainPortsTellNoSecrets(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.install("everything")
	controller := c.begin(deploy.Controller, record(t, c.Config), "--leader-elect-resource-namespace=berth-system", "--health-bind-address=127.0.0.1:0")
	webhook := c.begin(deploy.Webhook, record(t, c.Config), webhookFlags("0")...)
	webhook.says(`ready (https://\S+)`)
	c.apply("apiVersion: v1\nkind: Node\nmetadata: {name: somewhere}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: hidden-name, annotations: {password: hidden-value}}\nspec: {nodeName: somewhere, containers: [{name: c, image: nginx}]}\n")
	for _, p := range []*part{controller, webhook} {
		url := p.says(`health and metrics on (http://\S+)`)
		eventually(t, func() error { _, err := getAs(url+"/readyz", ""); return err })
		for _, path := range []string{"/metrics", "/configz", "/flagz", "/statusz", "/livez?verbose", "/readyz?verbose"} {
			if body, _ := getAs(url+path, ""); strings.Contains(body, "hidden-") || strings.Contains(body, "BEGIN ") || strings.Contains(body, c.token("berth-"+string(p.what))) {
				t.Errorf("%s %s tells too much: %s", p.what, path, body)
			}
		}
		for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/flags/v"} {
			if body, err := getAs(url+path, ""); err == nil {
				t.Errorf("%s %s is open: %.100q", p.what, path, body)
			}
		}
	}
}
