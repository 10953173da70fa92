package env

import (
	"bytes"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Hostname is the pod's host name, and the domain below which others find it, if any.
func Hostname(pod *v1.Pod, clusterDomain string) (host, domain string, err error) {
	if override := pod.Spec.HostnameOverride; override != nil {
		if wrong := validation.IsDNS1123Subdomain(*override); len(wrong) > 0 {
			return "", "", fmt.Errorf("pod HostnameOverride %q is not a valid DNS subdomain: %s", *override, strings.Join(wrong, ";"))
		}
		host, err = fitting(pod.Name, *override)
		return host, "", err
	}
	host = pod.Name
	if pod.Spec.Hostname != "" {
		if wrong := validation.IsDNS1123Label(pod.Spec.Hostname); len(wrong) > 0 {
			return "", "", fmt.Errorf("pod Hostname %q is not a valid DNS label: %s", pod.Spec.Hostname, strings.Join(wrong, ";"))
		}
		host = pod.Spec.Hostname
	}
	if host, err = fitting(pod.Name, host); err != nil {
		return "", "", err
	}
	if pod.Spec.Subdomain != "" {
		if wrong := validation.IsDNS1123Label(pod.Spec.Subdomain); len(wrong) > 0 {
			return "", "", fmt.Errorf("pod Subdomain %q is not a valid DNS label: %s", pod.Spec.Subdomain, strings.Join(wrong, ";"))
		}
		domain = fmt.Sprintf("%s.%s.svc.%s", pod.Spec.Subdomain, pod.Namespace, clusterDomain)
	}
	return host, domain, nil
}

// maxHostname is Linux's limit of 64 without the terminating zero byte.
const maxHostname = 63

func fitting(pod, host string) (string, error) {
	if len(host) <= maxHostname {
		return host, nil
	}
	short := strings.TrimRight(host[:maxHostname], "-.")
	if short == "" {
		return "", fmt.Errorf("hostname for pod %q was invalid: %q", pod, host)
	}
	return short, nil
}

// KernelHostname is the host name that the kernel reports in the pod: the short name, or the fully
// qualified one if the pod asks for that.
func KernelHostname(pod *v1.Pod, host, domain string) (string, error) {
	if domain == "" || !is(pod.Spec.SetHostnameAsFQDN) {
		return host, nil
	}
	const longest = 64
	full := host + "." + domain
	if len(full) > longest {
		return "", fmt.Errorf("failed to construct FQDN from pod hostname and cluster domain, FQDN %s is too long (%d characters is the max, %d characters requested)",
			full, longest, len(full))
	}
	return full, nil
}

// Hosts is the pod's /etc/hosts. With host networking it is the node's own, which the caller has
// read; otherwise the pod's addresses with its name. The pod's hostAliases follow.
func Hosts(pod *v1.Pod, podIPs []string, host, domain string, nodeHosts []byte) []byte {
	var file bytes.Buffer
	if pod.Spec.HostNetwork {
		file.WriteString("# Kubernetes-managed hosts file (host network).\n")
		file.Write(nodeHosts)
	} else {
		file.WriteString("# Kubernetes-managed hosts file.\n" +
			"127.0.0.1\tlocalhost\n" +
			"::1\tlocalhost ip6-localhost ip6-loopback\n" +
			"fe00::0\tip6-localnet\n" +
			"fe00::0\tip6-mcastprefix\n" +
			"fe00::1\tip6-allnodes\n" +
			"fe00::2\tip6-allrouters\n")
		names := host
		if domain != "" {
			names = host + "." + domain + "\t" + host
		}
		for _, ip := range podIPs {
			fmt.Fprintf(&file, "%s\t%s\n", ip, names)
		}
	}
	if len(pod.Spec.HostAliases) > 0 {
		file.WriteString("\n# Entries added by HostAliases.\n")
	}
	for _, alias := range pod.Spec.HostAliases {
		fmt.Fprintf(&file, "%s\t%s\n", alias.IP, strings.Join(alias.Hostnames, "\t"))
	}
	return file.Bytes()
}
