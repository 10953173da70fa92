package env

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// DNS is how names are resolved: the lines of a resolv.conf.
type DNS struct{ Servers, Searches, Options []string }

// Resolver is the node's DNS configuration for its pods.
type Resolver struct {
	ClusterDNS    []string // addresses of the cluster's own DNS; none if it has none
	ClusterDomain string   // such as cluster.local
	Host          DNS      // the node's own
}

// Warning is an event on a pod.
type Warning struct{ Reason, Message string }

// The limits of resolvers. What exceeds them is left out, with a warning.
const (
	maxServers     = 3
	maxSearches    = 32
	maxSearchChars = 2048
)

// For returns the pod's DNS configuration, by its dnsPolicy and dnsConfig.
func (r Resolver) For(pod *v1.Pod) (DNS, []Warning) {
	var dns DNS
	var warnings []Warning
	switch policy := pod.Spec.DNSPolicy; {
	case policy == v1.DNSNone:
	case policy == v1.DNSDefault, policy != v1.DNSClusterFirstWithHostNet && pod.Spec.HostNetwork:
		dns = r.Host
	case len(r.ClusterDNS) == 0:
		dns = r.Host
		warnings = append(warnings, Warning{"MissingClusterDNS", fmt.Sprintf("pod: %q. kubelet does not have ClusterDNS IP configured and cannot create Pod using %q policy. Falling back to %q policy.",
			fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID), v1.DNSClusterFirst, v1.DNSDefault)})
	default:
		dns = DNS{Servers: r.ClusterDNS, Searches: r.Host.Searches, Options: []string{"ndots:5"}}
		if domain := r.ClusterDomain; domain != "" {
			dns.Searches = once(append([]string{pod.Namespace + ".svc." + domain, "svc." + domain, domain}, r.Host.Searches...))
		}
	}
	if pod.Spec.DNSConfig != nil {
		dns = dns.and(pod.Spec.DNSConfig)
	}
	return dns.fitting(warnings)
}

// and adds the pod's own dnsConfig, without duplicates; the pod's value of an option wins.
func (d DNS) and(own *v1.PodDNSConfig) DNS {
	options := slices.Clone(d.Options)
	for _, option := range own.Options {
		if option.Value != nil && *option.Value != "" {
			options = append(options, option.Name+":"+*option.Value)
		} else {
			options = append(options, option.Name)
		}
	}
	return DNS{
		Servers:  once(slices.Concat(d.Servers, own.Nameservers)),
		Searches: once(slices.Concat(d.Searches, own.Searches)),
		Options:  lastOfEach(options),
	}
}

// fitting leaves out what exceeds the limits.
func (d DNS) fitting(warnings []Warning) (DNS, []Warning) {
	if len(d.Servers) > maxServers {
		d.Servers = d.Servers[:maxServers]
		warnings = append(warnings, Warning{"DNSConfigForming",
			"Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: " + strings.Join(d.Servers, " ")})
	}
	var searches []string
	for i, search := range d.Searches {
		if i < maxSearches && len(search) <= validation.DNS1123SubdomainMaxLength {
			searches = append(searches, search)
		}
	}
	for len(strings.Join(searches, " ")) > maxSearchChars {
		searches = searches[:len(searches)-1]
	}
	if len(searches) < len(d.Searches) {
		warnings = append(warnings, Warning{"DNSConfigForming",
			"Search Line limits were exceeded, some search paths have been omitted, the applied search line is: " + strings.Join(searches, " ")})
	}
	d.Searches = searches
	return d, warnings
}

// ParseResolvConf parses a node's resolv.conf. Name servers add up; the last search line counts.
func ParseResolvConf(file io.Reader) (DNS, error) {
	const longest = 10 << 20
	var dns DNS
	var wrong []error
	lines := bufio.NewScanner(io.LimitReader(file, longest))
	lines.Buffer(nil, longest)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		switch fields[0] {
		case "nameserver":
			if len(fields) < 2 {
				wrong = append(wrong, errors.New("a nameserver line of resolv.conf has no address"))
				continue
			}
			dns.Servers = append(dns.Servers, fields[1])
		case "search":
			dns.Searches = nil
			for _, search := range fields[1:] {
				if search != "." {
					dns.Searches = append(dns.Searches, strings.TrimSuffix(search, "."))
				}
			}
		case "options":
			dns.Options = lastOfEach(append(dns.Options, fields[1:]...))
		}
	}
	return dns, errors.Join(append(wrong, lines.Err())...)
}

// once keeps the first of equal words.
func once(words []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, word := range words {
		if !seen[word] {
			out = append(out, word)
		}
		seen[word] = true
	}
	return out
}

// lastOfEach keeps, of options with the same name, the last value, where the first one stood.
func lastOfEach(options []string) []string {
	place := map[string]int{}
	var out []string
	for _, option := range options {
		name, _, _ := strings.Cut(option, ":")
		if at, again := place[name]; again {
			out[at] = option
			continue
		}
		place[name] = len(out)
		out = append(out, option)
	}
	return out
}
