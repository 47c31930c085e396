"""Language models behind one small protocol: a closed question goes out, a checked answer comes back."""
