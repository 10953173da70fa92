// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2edeploy

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// unverified is a client that accepts every certificate, since the components' certificates are
// self-signed.
var unverified = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}

// getAs returns the response body of a URL requested with a bearer token, or without one if token
// is "".
func getAs(url, token string) (string, error) {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := unverified.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, response.Status, body)
	}
	return string(body), err
}

// scrape reads the scheduler's metrics as Prometheus does, and verifies that clients without the
// role berth-metrics are rejected.
func (c *cluster) scrape(url string) {
	c.Helper()
	url += "/metrics"
	c.kubectl("create", "serviceaccount", "prometheus", "-n", "default")
	c.kubectl("create", "clusterrolebinding", "prometheus", "--clusterrole=berth-metrics", "--serviceaccount=default:prometheus")
	eventually(c.T, func() error {
		body, err := getAs(url, c.tokenIn("default", "prometheus"))
		if err == nil && !strings.Contains(body, "scheduler_schedule_attempts_total") {
			err = fmt.Errorf("no metrics in %q", body)
		}
		return err
	})
	for _, token := range []string{"", "nobody's", c.tokenIn("default", "default")} {
		if body, err := getAs(url, token); err == nil {
			c.Errorf("metrics are open to a token of %d bytes: %.100s", len(token), body)
		}
	}
}

// review sends an AdmissionReview of a pod to a webhook, as an API server does.
func (c *cluster) review(url, namespace string, spec v1.PodSpec) error {
	spec.Containers = []v1.Container{{Name: "c", Image: "nginx"}}
	pod, err := json.Marshal(v1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: namespace}, Spec: spec})
	if err != nil {
		return err
	}
	review, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: "1", Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}, Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
			Namespace: namespace, Name: "p", Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: pod},
		},
	})
	if err != nil {
		return err
	}
	response, err := unverified.Post(url+"/mutate", "application/json", bytes.NewReader(review))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return err
}
