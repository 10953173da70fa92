// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"crypto/sha256"
	_ "embed"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"text/template"

	"k8s.io/client-go/util/cert"
)

//go:embed manifests.yaml
var manifestsText string

var manifests = template.Must(template.New("manifests").Parse(manifestsText))

// WriteManifests writes the manifests to run the webhook with these options: a Deployment of two
// replicas with its dependencies. It omits flags with default values. The certificates of
// ClientCAFile, a local file, become a ConfigMap.
func (o *Options) WriteManifests(out io.Writer, image string) error {
	if err := o.Validate(); err != nil {
		return err
	}
	if image == "" {
		return fmt.Errorf("--image: must name the image of berth to run")
	}

	port, err := portOf(o.Address, "--bind-address")
	if err != nil {
		return err
	}

	health, err := portOf(o.Health, "--health-bind-address")
	if err != nil {
		return err
	}

	clientCA, err := o.clientCertificates()
	if err != nil {
		return err
	}

	defaults := DefaultOptions()
	// The kubelet sends the probes, so the health port cannot stay on loopback.
	args := []string{"--namespace=" + o.Namespace, "--health-bind-address=0.0.0.0:" + health}
	// Showing only explicit choices in the Deployment lets a later version's defaults take effect.
	differs := func(flag, value, usual string) {
		if value != usual {
			args = append(args, "--"+flag+"="+value)
		}
	}

	differs("bind-address", o.Address, defaults.Address)
	differs("service", o.Service, defaults.Service)
	differs("advertise-host", o.AdvertiseHost, defaults.AdvertiseHost)
	differs("failure-policy", o.FailurePolicy, defaults.FailurePolicy)
	differs("timeout", o.Timeout.String(), defaults.Timeout.String())
	differs("exclude-namespaces", joinList(o.ExcludeNamespaces), joinList(defaults.ExcludeNamespaces))
	differs("certificate-lifetime", o.CertificateLifetime.String(), defaults.CertificateLifetime.String())
	differs("shutdown-delay", o.ShutdownDelay.String(), defaults.ShutdownDelay.String())
	differs("register", strconv.FormatBool(o.Register), strconv.FormatBool(defaults.Register))

	differs("default-not-ready-toleration-seconds", formatSeconds(o.Rules.NotReadySeconds), formatSeconds(defaults.Rules.NotReadySeconds))
	differs("default-unreachable-toleration-seconds", formatSeconds(o.Rules.UnreachableSeconds),
		formatSeconds(defaults.Rules.UnreachableSeconds))
	if clientCA != nil {
		args = append(args, "--client-ca-file="+clientCAPath+"/"+clientCAKey)
	}

	return manifests.Execute(out, map[string]any{
		"Namespace": o.Namespace, "Service": o.Service, "Image": image, "Args": args, "Port": port, "HealthPort": health,
		"ClientCA": clientCA, "ClientCAKey": clientCAKey, "ClientCAPath": clientCAPath,
		// A replica reads the file when it starts, so a changed file must replace the replicas.
		"ClientCASum": fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(clientCA, "\n")))),
	})
}

// The key of the client CA in the ConfigMap, and its mount path in a replica.
const (
	clientCAKey  = "client-ca.crt"
	clientCAPath = "/etc/berth-webhook"
)

// clientCertificates returns the certificates of ClientCAFile as the lines of a PEM file, nil if
// the option is empty. Other content, such as a key, must not enter a ConfigMap.
func (o *Options) clientCertificates() ([]string, error) {
	if o.ClientCAFile == "" {
		return nil, nil
	}
	certificates, err := cert.CertsFromFile(o.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("--client-ca-file: its certificates become part of the manifests: %w", err)
	}
	text, err := cert.EncodeCertificates(certificates...)
	if err != nil {
		return nil, fmt.Errorf("--client-ca-file: %w", err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n"), nil
}

// portOf returns the port of an address. The port must be fixed, because the Service and the probes
// refer to it.
func portOf(address, flag string) (string, error) {
	_, port, err := net.SplitHostPort(address)
	if n, bad := strconv.Atoi(port); err != nil || bad != nil || n < 1 {
		return "", fmt.Errorf("%s: %q: must have a fixed port, so that the Service finds it", flag, address)
	}
	return port, nil
}

// joinList formats a list for a flag.
func joinList(list []string) string { return strings.Join(list, ",") }

// formatSeconds formats a number for a flag; "" for nil.
func formatSeconds(n *int64) string {
	if n == nil {
		return ""
	}
	return strconv.FormatInt(*n, 10)
}
